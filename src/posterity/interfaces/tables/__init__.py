"""Tables as people have them: read, told apart into target and features, split, checked, and turned into tensors."""
