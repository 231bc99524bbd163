"""From a `Timeline` to SVG, PNG, an HTML player, and the trace format of Perfetto."""
