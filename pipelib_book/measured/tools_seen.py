"""The record of which tool sees which fault."""

PALLAS, CUDA, GLUON = LANGUAGES = "Pallas", "CUDA C++", "Gluon"
NONE, CONSAN = "none", "ConSan"
MEMCHECK, RACECHECK, SYNCCHECK = SANITIZER = "memcheck", "racecheck", "synccheck"
