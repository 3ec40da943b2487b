"""What a `config.json` leaves out means what the class of transformers has, or is asked for; it is never guessed."""

import json
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")

from rlx.errors import FormatError
from rlx.models.config_hf import DECODERS, decoder_config_from_hf
from rlx.models.config_hf_encoders import ENCODERS, encoder_config_from_hf
from rlx.models.config_hf_seq2seq import SEQ2SEQ, seq2seq_config_from_hf
from rlx.models.config_hf_vision import VISION, sight_config_from_hf

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

READERS = {
    **dict.fromkeys(DECODERS, (DECODERS, decoder_config_from_hf)),
    **dict.fromkeys(ENCODERS, (ENCODERS, encoder_config_from_hf)),
    **{kind: (SEQ2SEQ, lambda fields: seq2seq_config_from_hf(fields, {})) for kind in SEQ2SEQ},
    **dict.fromkeys(VISION, (VISION, sight_config_from_hf)),
}
# Those that transformers has no class for, and those whose class has sizes that no model can have.
UNKNOWN = ("internlm2", "baichuan", "exaone", "minicpm", "deepseek_v2", "glm4_moe", "dots1")
# Fields that were made of others when the class was; and layers behind the last one, which nothing reads.
DERIVED = ("model_type", "layer_types", "rope_parameters", "num_nextn_predict_layers", "scale_decoder_outputs")


@pytest.mark.parametrize("kind", [kind for kind in READERS if kind not in UNKNOWN])
def test_a_field_that_is_left_out_is_the_usual_one(kind):
    config = transformers.AutoConfig.for_model(kind)
    fields = {**json.loads(config.to_json_string(use_diff=False)), "model_type": kind}
    read = READERS[kind][1]
    whole, left_out = read(fields), 0
    parts = [(name, inner) for name, value in fields.items() if name.endswith("_config") for inner in value or ()]
    for name, inner in [*((name, None) for name in fields if name not in DERIVED), *parts]:
        without = {key: value for key, value in fields.items() if key != name}
        if inner is not None:
            without[name] = {key: value for key, value in fields[name].items() if key != inner}
        try:
            found = read(without)
        except FormatError:
            continue
        assert found == whole, (name, inner)
        left_out += 1
    assert left_out > 3
