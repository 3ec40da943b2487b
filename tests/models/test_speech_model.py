"""A Whisper model from a directory: the encoder, the decoder, and recordings to text, against plain NumPy."""

import json

import numpy as np
import pytest

import rlx
from models.tiny_whisper import CONFIG, GENERATION, NumpyWhisper, whisper_arrays, write_whisper
from rlx import audio
from rlx.cli import main
from rlx.errors import FormatError, OpError, ShapeError
from rlx.models.speech_model import _Decoding

RNG = np.random.default_rng(11)
FEATURES = RNG.standard_normal((2, 80, 100)).astype("f4")
REFERENCE = NumpyWhisper(CONFIG, whisper_arrays(CONFIG))
PROMPT = [258, 260, 261, 263]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def model(folder):
    return rlx.load_speech(folder)


def melody(rate, seconds=2.3):
    """Three tones of different strength on two channels, in a little noise."""
    time = np.arange(int(rate * seconds)) / rate
    tones = sum(np.sin(2 * np.pi * f * time) * (abs(time - at) < 0.4) for f, at in ((440, 0.4), (660, 1.2), (300, 2)))
    noise = np.random.default_rng(0).standard_normal((2, len(time)))
    return (0.2 * tones + 0.01 * noise).astype("f4")


def test_encoder(model):
    wanted = np.stack([REFERENCE.encode(f) for f in FEATURES])
    np.testing.assert_allclose(model.hidden_states(FEATURES), wanted, atol=1e-5)


def test_decoder_step_by_step(model):
    hidden = [REFERENCE.encode(f) for f in FEATURES]
    rows = np.array([[258, 259, 261, 263, 7, 9], [258, 260, 262, 263, 8, 1]], np.int32)
    decoding = _Decoding(model, model.encode(FEATURES))
    for start, end in ((0, 4), (4, 5), (5, 6)):
        got = decoding.extend(rows[:, start:end])
        wanted = np.stack([REFERENCE.logits(h, row[:end]) for h, row in zip(hidden, rows.tolist())])
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_tokens_are_the_likeliest_ones(model):
    """In a batch, each row ends by itself."""
    wanted = [REFERENCE.greedy(REFERENCE.encode(f), PROMPT, GENERATION) for f in FEATURES]
    assert model._written(model.encode(FEATURES), PROMPT) == wanted
    assert any(wanted)


def test_a_recording_becomes_text(model, folder, tmp_path, capsys):
    """From a stereo file of another rate to text: three windows of one second, in batches of two."""
    path = tmp_path / "melody.wav"
    audio.write_wav(path, melody(44100), 44100)
    samples = np.asarray(audio.resample(audio.read_wav(path).mono, 44100, 16000))
    windows = [np.pad(samples[s : s + 16000], (0, max(s + 16000 - len(samples), 0))) for s in (0, 16000, 32000)]
    hidden = [REFERENCE.encode(np.asarray(audio.whisper_log_mel(w))) for w in windows]
    first = REFERENCE.logits(hidden[0], [258])
    language = "en" if first[259] > first[260] else "de"
    prompt = [258, GENERATION["lang_to_id"][f"<|{language}|>"], 261, 263]
    wanted = [REFERENCE.greedy(h, prompt, GENERATION) for h in hidden]

    seen = []
    transcript = model.transcribe(path, batch_size=2, progress=lambda done, total: seen.append((done, total)))
    assert [s.token_ids for s in transcript.segments] == wanted
    assert transcript.language == language
    assert transcript.text == " ".join(t for t in (model.tokenizer.decode(i).strip() for i in wanted) if t)
    assert [(s.start, s.end) for s in transcript.segments] == [(0.0, 1.0), (1.0, 2.0), (2.0, len(samples) / 16000)]
    assert seen == [(2, 3), (3, 3)]

    assert main(["transcribe", str(path), "--model", str(folder), "--json"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    assert printed["text"] == transcript.text and [s["token_ids"] for s in printed["segments"]] == wanted
    assert main(["transcribe", str(path), "--model", str(folder), "--language", language]) == 0
    assert capsys.readouterr().out == transcript.text + "\n"


def test_arrays_and_silence(model):
    empty = model.transcribe(np.zeros(0, "f4"))
    assert empty.text == "" and empty.segments == []
    both = melody(16000, 0.9)
    assert model.transcribe(both) == model.transcribe(both.mean(0))
    assert model.features(np.zeros(5, "f4")).shape == (80, 100)


def test_a_model_of_one_language(tmp_path):
    generation = {k: v for k, v in GENERATION.items() if k not in ("lang_to_id", "task_to_id")}
    model = rlx.load_speech(write_whisper(tmp_path / "english", generation=generation))
    transcript = model.transcribe(melody(16000, 0.5))
    hidden = REFERENCE.encode(model.features(melody(16000, 0.5).mean(0)))
    assert transcript.language is None
    assert transcript.segments[0].token_ids == REFERENCE.greedy(hidden, [258, 263], GENERATION)
    with pytest.raises(OpError, match="only transcribes, got task='translate'"):
        model.transcribe(melody(16000, 0.5), task="translate")


def test_a_head_of_its_own(tmp_path):
    """A model whose output matrix is not its embedding."""
    arrays = whisper_arrays(CONFIG)
    head = np.random.default_rng(1).standard_normal((270, 32)).astype("f4")
    config = CONFIG | {"tie_word_embeddings": False}
    model = rlx.load_speech(write_whisper(tmp_path / "untied", config, arrays=arrays | {"proj_out.weight": head}))
    tied = rlx.load_speech(write_whisper(tmp_path / "tied", arrays=arrays | {"proj_out.weight": head}))
    features = FEATURES[:1]
    token = np.array([[258]], np.int32)
    kept, other = (_Decoding(m, m.encode(features)).extend(token) for m in (tied, model))
    np.testing.assert_allclose(kept[0], REFERENCE.logits(REFERENCE.encode(features[0]), [258]), atol=1e-5)
    assert abs(kept - other).max() > 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "wav2vec2"}, "models of type 'whisper', this is 'wav2vec2'"),
        ({"encoder_attention_heads": 5}, "d_model=32 is not a multiple of encoder_attention_heads=5"),
        ({"activation_function": "mish"}, "activation_function 'mish' is not supported"),
        ({"d_model": 64}, r"must have the shape \[64, 80, 3\], got \[32, 80, 3\]"),
        ({"decoder_layers": 2}, "no use for the tensor 'model.decoder.layers.2"),
        ({"decoder_layers": 4}, "the tensor 'model.decoder.layers.3.encoder_attn.k_proj.weight' .* is missing"),
        ({"scale_embedding": True}, "scale_embedding=True is not supported"),
        ({"vocab_size": "many"}, "vocab_size must be a whole number"),
    ],
)
def test_broken_configs_are_refused(folder, config, message, tmp_path):
    write_whisper(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | config))
    with pytest.raises(FormatError, match=message):
        rlx.load_speech(tmp_path)


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"decoder_start_token_id": None}, "decoder_start_token_id must be a token id, got None"),
        ({"eos_token_id": 999}, "the token 999 is not one of the 270 tokens"),
        ({"suppress_tokens": 3}, "suppress_tokens must be a list of token ids, got 3"),
        ({"lang_to_id": [1]}, "lang_to_id must be an object"),
        ({"no_timestamps_token_id": "x"}, "a token must be a token id, got 'x'"),
    ],
)
def test_broken_tokens_are_refused(generation, message, tmp_path):
    write_whisper(tmp_path, generation=GENERATION | generation)
    with pytest.raises(FormatError, match=message):
        rlx.load_speech(tmp_path)


def test_what_else_is_refused(model, tmp_path, capsys):
    with pytest.raises(OpError, match="does not know the language 'xx'; it knows: de, en"):
        model.transcribe(melody(16000, 0.2), language="xx")
    with pytest.raises(OpError, match="task must be one of transcribe, translate, got 'sing'"):
        model.transcribe(melody(16000, 0.2), task="sing")
    with pytest.raises(OpError, match="samples must be finite"):
        model.transcribe(np.full(10, np.nan, "f4"))
    with pytest.raises(ShapeError, match=r"needs floats \[frames\] or \[channels, frames\], got int64\[3\]"):
        model.transcribe([1, 2, 3])
    with pytest.raises(OpError, match="batch_size must be at least 1"):
        model.transcribe(melody(16000, 0.2), batch_size=0)
    with pytest.raises(ShapeError, match="needs at most 16000 samples"):
        model.features(np.zeros(16001, "f4"))
    (tmp_path / "x.mp3").write_bytes(b"ID3" + bytes(100))
    with pytest.raises(FormatError, match="this is an MP3 file"):
        model.transcribe(tmp_path / "x.mp3")
    with pytest.raises(FormatError, match="a speech model is a Hugging Face directory"):
        rlx.load_speech(tmp_path / "x.mp3")
    write_whisper(tmp_path / "odd")
    (tmp_path / "odd" / "preprocessor_config.json").write_text('{"hop_length": 80}')
    with pytest.raises(FormatError, match="hop_length=80 is not supported; Whisper models have 160"):
        rlx.load_speech(tmp_path / "odd")
