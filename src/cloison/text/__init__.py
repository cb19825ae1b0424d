"""Records to samples: readers, chat templates, spans, targets."""
