"""From a `Program` and a `Machine` to a `Timeline`."""
