"""Made the model directories `v1-*` beside it, once. They must stay readable for ever: never make them again.

python tests/model/data/make_v1.py NEW_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from regard.model import store
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder

SOURCE, TARGET = [[3, 4, 5, 6], [7, 8, 0, 0]], [[1, 9, 10], [1, 5, 3]]
MODELS = {
    "v1-post-tied": {"heads": 2},
    "v1-pre-untied": {"heads": 2, "norm_placement": "pre", "positions": "learned", "tie": "none", "d_key": 3},
}

if __name__ == "__main__":
    for number, (name, changes) in enumerate(MODELS.items()):
        torch.manual_seed(number)
        tiny = {"d_model": 4, "d_ff": 6, "encoder_layers": 1, "decoder_layers": 1, "max_length": 8}
        model = EncoderDecoder(ModelSettings.model_validate(tiny | changes), 12, 12).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        directory = Path(sys.argv[1]) / name
        store.write(directory, model)
        source = torch.tensor(SOURCE)
        with torch.no_grad():
            logits = model.logits(model(source, source != 0, torch.tensor(TARGET)))
        golden = {"source": SOURCE, "target": TARGET, "logits": logits.tolist()}
        (directory / "golden.json").write_text(json.dumps(golden) + "\n", encoding="utf-8", newline="\n")
