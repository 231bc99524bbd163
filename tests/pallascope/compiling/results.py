"""A result of a compilation, made up."""

from pallascope.compiling import Compiled, Loop
from pallascope.compiling.machine_code import CLASSES

SERIALIZED = (
    "(C7513) Potential Performance Loss: wgmma.mma_async instructions are serialized due to non"
    " wgmma instructions defining input registers of a wgmma between start and end of the pipeline"
    " stage in the function 'attention_mosaic_gpu_kernel'"
)


def counts(**named):
    return {name: named.get(name, 0) for name in CLASSES}


def made(**changed):
    loop = Loop(0x8E0, "forms.py:219", counts(HGMMA=4, all=84))
    facts = {
        "kernel": "product", "ptxas": "13.0.88", "registers": 58, "spill_stores": 0,
        "spill_loads": 0, "stack": 0, "warnings": (), "instructions": counts(HGMMA=4, all=1275),
        "loops": (loop, Loop(0xB10, None, counts(UTMALDG=2, all=20))), "ptx": "PTX", "sass": "SASS",
    }  # fmt: skip
    return Compiled(**facts | changed)
