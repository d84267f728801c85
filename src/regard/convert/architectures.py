"""All foreign architectures by the name that their `config.json` has in `model_type`.

Of several that compute the same for a model that is written, the first is taken.
"""

from __future__ import annotations

from regard.convert.bart import BART_FAMILY
from regard.convert.bert import BERT_FAMILY
from regard.convert.gpt2 import GPT2
from regard.convert.llama import LLAMA_FAMILY
from regard.convert.mapping import Architecture
from regard.convert.t5 import T5
from regard.convert.vit import VIT
from regard.convert.whisper import WHISPER

ARCHITECTURES: dict[str, Architecture] = {
    each.name: each for each in (*BART_FAMILY, T5, WHISPER, GPT2, *LLAMA_FAMILY, *BERT_FAMILY, VIT)
}
