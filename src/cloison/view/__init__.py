"""The same findings for the eye: terminal and pages."""
