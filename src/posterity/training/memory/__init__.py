"""How much memory a fit takes, before it is run."""
