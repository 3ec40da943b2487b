"""Fine-tuning of loaded models: LoRA, DoRA, or all weights; what comes out is an adapter or a new GGUF file.

    rlx.finetune.finetune("smollm2", "chats.jsonl", "run", steps=200)
    lm = rlx.load("smollm2", adapter="run")

`trainable_decoder` and `trainable_encoder` give the same models as functions, for losses and loops of your own.
"""

# Each module lists its public names in __all__.
# ruff: noqa: F403

from rlx.finetune.examples import *
from rlx.finetune.run import *
from rlx.finetune.trainable import *
from rlx.models.adapters import AdapterConfig as AdapterConfig
