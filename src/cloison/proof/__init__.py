"""Experiments on a model: whether packed samples see each other, whether they are what they are alone, and where not."""
