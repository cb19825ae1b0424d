"""The demo: the main job and its proof, on data that every machine has."""
