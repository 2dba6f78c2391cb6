"""Pictures and texts from the shell: a pretrained network that was not made here, and a posterior over its last part."""
