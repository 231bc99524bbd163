"""The record of which tool sees which fault."""

PALLAS, CUDA, GLUON = LANGUAGES = "Pallas", "CUDA C++", "Gluon"
NONE, CONSAN = "none", "ConSan"
SANITIZER = "memcheck", "racecheck", "synccheck"
