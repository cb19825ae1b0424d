"""What lies on disk: the token store, packed blocks and their manifest, and the writing that survives a crash."""
