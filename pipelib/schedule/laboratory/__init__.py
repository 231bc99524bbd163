"""The laboratory: a saved program on a page, to be edited, checked and simulated anew.

`bench` is what answers the page, in plain Python. `laboratory.js` is the page's part, `worker.js`
runs `bench` beside it in Pyodide, and `laboratory.css` is its looks.
"""
