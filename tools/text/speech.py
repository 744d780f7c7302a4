"""speech.py PROGRAM — speech recognition beside transformers: log-mel features, logits, transcriptions.

Makes small Whisper folders with random weights, and sound by a synthesizer (espeak-ng) and by formula. Features are
compared with those of WhisperFeatureExtractor in f64, logits and whole transcriptions (short, with timestamps, longer
than 30 s, with detection of the language) with those of WhisperForConditionalGeneration. With WHISPER_FOLDER=PATH in the
environment, that model as well. Runs in the peers' Python (tools/peers/python.sh) with torch and transformers; without
them all is skipped.
"""

import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import wave

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from opinfo.process import in_peers_python  # noqa: E402

FEATURES_BOUND = 1e-5
LOGITS_BOUND = 1e-5  # relative to the largest
RATE = 16000
WORDS = ("The weather today is cloudy with a chance of rain in the afternoon. "
         "Please remember to close the windows before you leave the house. ")
LANGUAGES = ("en", "zh", "de", "yue")


class Library:
    """libtrunnion-text, as a C program sees it."""

    def __init__(self, build):
        self.lib = ctypes.CDLL(str(next(build.glob("libtrunnion*text*.so"))))
        self.lib.tn_error.restype = ctypes.c_char_p
        self.lib.tn_speech_feature_frames.restype = ctypes.c_int64

    def call(self, name, *arguments):
        if getattr(self.lib, name)(*arguments):
            raise RuntimeError(f"{name}: {self.lib.tn_error().decode()}")

    def open(self, folder):
        out = ctypes.c_void_p()
        self.call("tn_speech_open", str(folder).encode(), None, ctypes.byref(out))
        return out

    def features(self, model, numpy, samples, mels):
        samples = numpy.ascontiguousarray(samples, numpy.float32)
        frames = self.lib.tn_speech_feature_frames(model, ctypes.c_int64(len(samples)))
        out = numpy.zeros((mels, frames), numpy.float32)
        self.call("tn_speech_features", model, samples.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(len(samples)),
                  out.ctypes.data_as(ctypes.c_void_p))
        return out

    def logits(self, model, numpy, features, ids, vocabulary):
        features = numpy.ascontiguousarray(features, numpy.float32)
        self.call("tn_speech_encode", model, features.ctypes.data_as(ctypes.c_void_p))
        rows, at = [], ctypes.POINTER(ctypes.c_float)()
        for i in ids:
            self.call("tn_speech_step", model, ctypes.c_int32(i), ctypes.byref(at))
            rows.append(numpy.ctypeslib.as_array(at, (vocabulary,)).copy())
        return numpy.stack(rows)


def write_tokenizer(folder, timestamps):
    """Byte-level BPE of all bytes, and Whisper's special tokens behind them. Returns the ids by spelling."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    special = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{x}|>" for x in LANGUAGES), "<|translate|>",
               "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
               *(f"<|{i * 0.02:.2f}|>" for i in range(timestamps))]
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    return {text: len(vocabulary) + i for i, text in enumerate(special)}


def write_wav(path, numpy, samples, rate=RATE):
    with wave.open(str(path), "wb") as f:
        f.setnchannels(1)
        f.setsampwidth(2)
        f.setframerate(rate)
        f.writeframes((numpy.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def read_wav(path, numpy):
    with wave.open(str(path), "rb") as f:
        return numpy.frombuffer(f.readframes(f.getnframes()), "<i2").astype(numpy.float32) / 32768


class Suite:
    def __init__(self, program, torch, transformers, numpy, folder):
        self.program, self.torch, self.transformers, self.numpy, self.folder = program, torch, transformers, numpy, folder
        self.library = Library(program.parent)
        self.passed = self.failed = self.skipped = 0

    def expect(self, good, text):
        self.passed += bool(good)
        self.failed += not good
        if not good:
            print(f"failed: {text}", flush=True)

    def command(self, *words):
        result = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"trunnion {' '.join(map(str, words[:3]))}: {result.stderr.strip()}")
        return json.loads(result.stdout)

    # ---- sound -----------------------------------------------------------------------------------------------------

    def sounds(self):
        """Files of 16 kHz by name."""
        numpy, made = self.numpy, {}
        t = numpy.arange(5 * RATE) / RATE
        noise = numpy.random.default_rng(1)
        made["tones"] = 0.3 * numpy.sin(2 * numpy.pi * 440 * t) + 0.1 * numpy.sin(2 * numpy.pi * (200 + 300 * t) * t)
        made["noise"] = 0.2 * noise.standard_normal(37 * RATE + 77)
        made["silence"] = numpy.zeros(RATE)
        for name, samples in made.items():
            write_wav(self.folder / f"{name}.wav", numpy, samples)
        if shutil.which("espeak-ng"):
            for name, words in ("speech", WORDS), ("long", WORDS * 6):
                self.speak(name, words)
                made[name] = None
        else:
            self.skipped += 1
            print("skipped: speech: espeak-ng is not installed")
        return [self.folder / f"{name}.wav" for name in made]

    def speak(self, name, words):
        """As the synthesizer makes it, at 22 050 Hz, and that at 16 kHz by the library."""
        raw, numpy = self.folder / f"{name}-22k.wav", self.numpy
        subprocess.run(["espeak-ng", "-s", "140", "-w", raw, words], check=True)

        class Audio(ctypes.Structure):
            _fields_ = [("samples", ctypes.POINTER(ctypes.c_float)), ("count", ctypes.c_int64), ("rate", ctypes.c_int64),
                        ("source_rate", ctypes.c_int64), ("channels", ctypes.c_int)]
        audio = Audio()
        self.library.call("tn_audio_read", str(raw).encode(), ctypes.c_int64(RATE), ctypes.byref(audio))
        write_wav(self.folder / f"{name}.wav", numpy, numpy.ctypeslib.as_array(audio.samples, (audio.count,)))
        self.library.lib.tn_audio_free(ctypes.byref(audio))

    # ---- a model ---------------------------------------------------------------------------------------------------

    def make(self, name, many=True, **changes):
        """A folder with random weights."""
        torch, folder = self.torch, self.folder / name
        folder.mkdir()
        timestamps = 1501
        ids = write_tokenizer(folder, timestamps)
        torch.manual_seed(sum(map(ord, name)))
        end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
        config = self.transformers.WhisperConfig(**{
            "vocab_size": ids["<|notimestamps|>"] + 1 + timestamps, "d_model": 32, "encoder_layers": 2,
            "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 64, "num_mel_bins": 80, "max_target_positions": 90, "bos_token_id": end,
            "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start} | changes)
        model = self.transformers.WhisperForConditionalGeneration(config)
        with torch.no_grad():
            for key, p in model.named_parameters():
                p.normal_(0, 0.25 if p.dim() > 1 else 0.3)
                if p.dim() == 1 and key.endswith("weight"):
                    p.add_(1)
        model.generation_config = self.transformers.GenerationConfig(
            is_multilingual=many, decoder_start_token_id=start, eos_token_id=end, pad_token_id=end, bos_token_id=end,
            no_timestamps_token_id=ids["<|notimestamps|>"], suppress_tokens=[3, 9, start], begin_suppress_tokens=[7, end],
            max_initial_timestamp_index=50, max_length=90, return_timestamps=False,
            **({"lang_to_id": {f"<|{x}|>": ids[f"<|{x}|>"] for x in LANGUAGES},
                "task_to_id": {x: ids[f"<|{x}|>"] for x in ("transcribe", "translate")}} if many else {}))
        model.save_pretrained(folder)
        return folder

    def run(self, folder, sounds):
        numpy, torch = self.numpy, self.torch
        config = json.loads((folder / "config.json").read_text())
        mels, vocabulary = config["num_mel_bins"], config["vocab_size"]
        whisper = self.transformers.WhisperForConditionalGeneration
        model = whisper.from_pretrained(folder, dtype=torch.float32).eval()
        front = self.transformers.WhisperFeatureExtractor(feature_size=mels)
        ours = self.library.open(folder)
        noise = numpy.random.default_rng(3)
        for path in sounds:
            name = f"{folder.name}, {path.stem}"
            samples = read_wav(path, numpy)
            padded = numpy.pad(samples, (0, max(0, 30 * RATE - len(samples))))
            wanted = front._np_extract_fbank_features(padded[None].astype(numpy.float64), "cpu")[0]
            got = self.library.features(ours, numpy, samples, mels)
            error = numpy.abs(got - wanted[:, :got.shape[1]]).max()
            self.expect(got.shape == wanted.shape and error <= FEATURES_BOUND, f"{name}: features differ by {error:.2g}")
            ids = [config["decoder_start_token_id"], *noise.integers(0, vocabulary, 70 if vocabulary < 9999 else 12)]
            with torch.no_grad():
                theirs = model(torch.from_numpy(got[None, :, :3000]), decoder_input_ids=torch.tensor([ids])).logits[0]
            theirs = theirs.numpy()
            worst = numpy.abs(self.library.logits(ours, numpy, got[:, :3000], ids, vocabulary) - theirs).max()
            worst /= numpy.abs(theirs).max()
            self.expect(worst <= LOGITS_BOUND, f"{name}: logits differ by {worst:.2g} of the largest")
            texts = [self.transcribe(model, folder, path, got, words) for words in self.ways(folder, samples)]
            print(f"{name}: features {error:.1e}, logits {worst:.1e}, tokens {texts}", flush=True)
        self.library.lib.tn_speech_close(ours)

    def ways(self, folder, samples):
        many = json.loads((folder / "generation_config.json").read_text())["is_multilingual"]
        yield {}
        if len(samples) <= 30 * RATE:
            yield {"timestamps": True}
        if many:
            yield {"language": "de", "translate": True}

    def transcribe(self, model, folder, path, features, how):
        """The same tokens; and the text that transformers makes of them. Returns their number."""
        torch = self.torch
        many = model.generation_config.is_multilingual
        timed = how.get("timestamps", False) or features.shape[1] > 3000
        options = {"return_timestamps": timed}
        if many:
            options |= {"task": "translate" if how.get("translate") else "transcribe", "language": how.get("language")}
        with torch.no_grad():
            wanted = model.generate(torch.from_numpy(features[None]), return_segments=timed,
                                    force_unique_generate_call=not timed, **options)
        words = [w for k, v in how.items() for w in ([f"--{k}"] if v is True else [f"--{k}", v])]
        got = self.command("transcribe", "-m", folder, path, "--json", *words)
        tokens = [s["ids"] for s in got["segments"]]
        if timed:
            wanted = [(s["tokens"].tolist(), float(s["start"]), float(s["end"])) for s in wanted["segments"][0]]
            skip = -1 if how.get("timestamps") else None  # what follows the sound is silence: only transformers goes on
            end = model.generation_config.eos_token_id
            wanted = [([i for i in t if i != end], a, b) for t, a, b in wanted]
            times = [(s["start"], s["end"]) for s in got["segments"]]
            theirs = [w[0] for w in wanted]
            # We end a segment before the timestamp that begins the next window; transformers keeps both.
            first = model.generation_config.no_timestamps_token_id + 1
            theirs = [t[:-1] if len(t) > 2 and min(t[-2:]) >= first else t for t in theirs]
            theirs, wanted = (theirs[:len(tokens)], wanted[:len(tokens)]) if skip else (theirs, wanted)
            self.expect(all(abs(a - w[1]) < 1e-6 and abs(b - w[2]) < 1e-6 for (a, b), w in zip(times, wanted)),
                        f"{folder.name}, {path.stem}, {how}: times {times}, by transformers {[w[1:] for w in wanted]}")
        else:
            end = model.generation_config.eos_token_id
            begin = model.generation_config.no_timestamps_token_id
            theirs = wanted[0].tolist()
            theirs = theirs[theirs.index(begin) + 1:] if begin in theirs else theirs
            theirs = [[i for i in theirs if i != end]]
        self.expect(tokens == theirs, f"{folder.name}, {path.stem}, {how}: tokens {tokens}, by transformers {theirs}")
        return sum(map(len, tokens))


def main():
    in_peers_python("transformers")
    import numpy
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="trunnion-speech-") as folder:
        suite = Suite(pathlib.Path(sys.argv[1]).resolve(), torch, transformers, numpy, pathlib.Path(folder))
        sounds = suite.sounds()
        suite.run(suite.make("many"), sounds)
        suite.run(suite.make("english", many=False, num_mel_bins=128), sounds)
        given = os.environ.get("WHISPER_FOLDER")
        if given:
            suite.run(pathlib.Path(given), sounds)
        print(f"{suite.passed} passed, {suite.failed} failed, {suite.skipped} skipped")
        return 1 if suite.failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
