"""From a `Program` to a `Report`: what goes wrong for some schedule of its threads."""
