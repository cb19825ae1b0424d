"""Other systems' files: packed blocks out, token stores in. One system a file, written from the facts of its format."""
