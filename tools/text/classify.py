"""classify.py PROGRAM [NAME…] — classifiers of pictures and sounds out of Hugging Face folders, beside transformers.

Makes a tiny folder with random weights for every family and its variants, and compares with transformers: the logits of
a picture or sound, what a network gets of a picture (within one step of 255), and the classes that `run` shows. Runs in
the peers' Python (tools/peers/python.sh) with torch, transformers and Pillow; without them all is skipped. With
names, these rows alone.
"""

import ctypes
import json
import pathlib
import subprocess
import sys
import tempfile
import wave

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from opinfo.process import in_peers_python  # noqa: E402
from text.hf_folders import CTC, randomize  # noqa: E402

LOGITS_BOUND = 1e-5  # of the largest; transformers computes in f32 with the same weights
SOUND_BOUND = 2e-5   # its features of sound are f32
CLASSES = 7
VIT = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40, "image_size": 32,
       "patch_size": 8}
SQUARE, EDGE = {"height": 32, "width": 32}, {"shortest_edge": 32}
WAVES = {k: v for k, v in CTC.items() if k != "vocab_size"} | {"classifier_proj_size": 20}
PICTURES = [  # name, stem, class, configuration, image processor and its values
    ("vit", "ViT", "", VIT, "ViT", {"size": SQUARE}),
    ("vit-bicubic", "ViT", "", VIT, "ViT", {"size": SQUARE, "resample": 3, "image_mean": [0.4, 0.5, 0.6]}),
    ("deit", "DeiT", "", VIT, "DeiT", {"size": {"height": 40, "width": 40}, "crop_size": SQUARE}),
    ("deit-teacher", "DeiT", "WithTeacher", VIT, "DeiT", {"size": {"height": 30, "width": 36}, "crop_size": SQUARE}),
    ("beit", "Beit", "", VIT | {"use_relative_position_bias": True, "layer_scale_init_value": 0.3}, "Beit",
     {"size": SQUARE, "do_center_crop": False}),
    ("beit-shared", "Beit", "", VIT | {"use_shared_relative_position_bias": True, "layer_scale_init_value": 0.0,
                                       "use_absolute_position_embeddings": True, "use_mean_pooling": False},
     "Beit", {"size": SQUARE, "crop_size": SQUARE}),
    ("data2vec-vision", "Data2VecVision", "", VIT | {"use_relative_position_bias": True}, "Beit",
     {"size": SQUARE, "do_center_crop": False}),
    ("dinov2", "Dinov2", "", VIT | {"mlp_ratio": 2}, "Bit", {"size": {"shortest_edge": 36}, "crop_size": SQUARE}),
    ("dinov2-resized", "Dinov2", "", VIT | {"image_size": 56}, "Bit", {"size": EDGE, "crop_size": SQUARE}),
    ("dinov2-wide", "Dinov2", "", VIT | {"mlp_ratio": 2}, "Bit",
     {"size": {"shortest_edge": 36}, "crop_size": {"height": 16, "width": 64}}),  # as many places, in another order
    ("swin", "Swin", "", {"embed_dim": 12, "depths": [2, 2], "num_heads": [2, 3], "window_size": 4, "image_size": 32,
                          "patch_size": 2}, "ViT", {"size": SQUARE}),
    ("swin-one-window", "Swin", "", {"embed_dim": 12, "depths": [1, 2], "num_heads": [2, 3], "window_size": 4,
                                     "image_size": 32, "patch_size": 4, "use_absolute_embeddings": True}, "ViT", {"size": SQUARE}),
    ("resnet", "ResNet", "", {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 2]}, "ConvNext",
     {"size": EDGE, "crop_pct": 0.875}),
    ("resnet-basic", "ResNet", "", {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [2, 1], "layer_type": "basic"},
     "ConvNext", {"size": EDGE, "crop_pct": 0.7}),
    ("resnet-first", "ResNet", "", {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1],
                                    "downsample_in_first_stage": True, "downsample_in_bottleneck": True},
     "ConvNext", {"size": {"shortest_edge": 384}}),
    ("convnext", "ConvNext", "", {"hidden_sizes": [8, 12], "depths": [1, 2], "num_stages": 2, "layer_scale_init_value": 0.2},
     "ConvNext", {"size": EDGE}),
    ("convnextv2", "ConvNextV2", "", {"hidden_sizes": [8, 12], "depths": [1, 2], "num_stages": 2}, "ConvNext", {"size": EDGE}),
    ("mobilenet-v2", "MobileNetV2", "", {"depth_multiplier": 0.35, "image_size": 33}, "MobileNetV2",
     {"size": {"shortest_edge": 40}, "crop_size": {"height": 33, "width": 33}}),
    ("mobilenet-v2-padded", "MobileNetV2", "", {"depth_multiplier": 0.35, "image_size": 32, "tf_padding": False,
                                                "first_layer_is_expansion": False, "finegrained_output": False},
     "MobileNetV2", {"size": {"shortest_edge": 40}, "crop_size": SQUARE}),
]
SOUNDS = [  # name, stem, class, configuration, feature extractor and its values
    ("ast", "AST", "ForAudioClassification", {k: v for k, v in VIT.items() if "_size" not in k} | {
        "hidden_size": 24, "intermediate_size": 40, "max_length": 64, "num_mel_bins": 32, "patch_size": 8,
        "frequency_stride": 6, "time_stride": 5}, "AST", {"max_length": 64, "num_mel_bins": 32}),
    ("ast-plain", "AST", "ForAudioClassification", {k: v for k, v in VIT.items() if "_size" not in k} | {
        "hidden_size": 24, "intermediate_size": 40, "max_length": 24, "num_mel_bins": 32, "patch_size": 8,
        "problem_type": "multi_label_classification"}, "AST", {"max_length": 24, "num_mel_bins": 32, "do_normalize": False}),
    ("whisper", "Whisper", "ForAudioClassification", {
        "d_model": 24, "encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_layers": 1,
        "decoder_attention_heads": 3, "decoder_ffn_dim": 40, "classifier_proj_size": 20}, "Whisper", {}),
    ("whisper-sum", "Whisper", "ForAudioClassification", {
        "d_model": 24, "encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_layers": 1,
        "decoder_attention_heads": 3, "decoder_ffn_dim": 40, "classifier_proj_size": 20, "use_weighted_layer_sum": True},
     "Whisper", {}),
    ("wav2vec2", "Wav2Vec2", "ForSequenceClassification", WAVES, "Wav2Vec2", {}),
    ("wav2vec2-sum", "Wav2Vec2", "ForSequenceClassification", WAVES | {
        "use_weighted_layer_sum": True, "feat_extract_norm": "layer", "do_stable_layer_norm": True}, "Wav2Vec2", {}),
    ("hubert-sum", "Hubert", "ForSequenceClassification", WAVES | {"use_weighted_layer_sum": True}, "Wav2Vec2",
     {"do_normalize": False}),
    ("wavlm", "WavLM", "ForSequenceClassification", WAVES | {"num_buckets": 12, "max_bucket_distance": 20}, "Wav2Vec2", {}),
    ("data2vec-audio", "Data2VecAudio", "ForSequenceClassification", WAVES | {
        "num_conv_pos_embeddings": 3, "conv_pos_kernel_size": 5}, "Wav2Vec2", {}),
]


class Library:
    """The functions of classify.h by ctypes."""

    def __init__(self, program, numpy):
        self.numpy, self.library = numpy, ctypes.CDLL(str(program.resolve().parent / "libtrunnion-text.so"))
        self.library.tn_error.restype = ctypes.c_char_p

    def call(self, name, *arguments):
        if getattr(self.library, name)(*arguments):
            raise RuntimeError(self.library.tn_error().decode())

    def run(self, name, folder, *arguments, count):
        """`count` floats that a function of an open classifier writes."""
        model, out = ctypes.c_void_p(), self.numpy.zeros(count, self.numpy.float32)
        self.call("tn_classifier_open", str(folder).encode(), None, ctypes.byref(model))
        self.call(name, model, *arguments, out.ctypes.data_as(ctypes.c_void_p))
        self.library.tn_classifier_close(model)
        return out


class Suite:
    def __init__(self, program, folder, torch, transformers, numpy):
        self.program, self.folder, self.torch, self.transformers, self.numpy = program, folder, torch, transformers, numpy
        self.library, self.passed, self.failed = Library(program, numpy), 0, 0

    def expect(self, fine, text):
        self.passed += bool(fine)
        self.failed += not fine
        if not fine:
            print(f"FAILED {text}", flush=True)

    def make(self, name, stem, kind, config):
        self.torch.manual_seed(sum(map(ord, name)))
        labels = {i: f"class {i}" for i in range(CLASSES)}
        made = getattr(self.transformers, stem + "Config")(**config, id2label=labels, label2id={v: k for k, v in labels.items()})
        made._attn_implementation = "eager"
        model = getattr(self.transformers, stem + kind)(made)
        randomize(self.torch, model)
        for key, b in model.named_buffers():  # of batch norms
            if key.endswith("running_mean"):
                b.normal_(0, 0.3)
            if key.endswith("running_var"):
                b.uniform_(0.5, 2)
        model.eval().save_pretrained(self.folder / name)
        return model

    def compare(self, name, got, wanted, bound, file, independent):
        """Logits, and the classes that the command shows."""
        numpy = self.numpy
        error = numpy.abs(got - wanted).max() / numpy.abs(wanted).max()
        self.expect(error <= bound, f"{name}: logits differ by {error:.2g} of the largest")
        shares = 1 / (1 + numpy.exp(-wanted)) if independent else numpy.exp(wanted) / numpy.exp(wanted).sum()
        told = subprocess.run([self.program, "run", self.folder / name, file, "--top", "3", "--json"], capture_output=True, text=True)
        if told.returncode:
            raise RuntimeError(told.stderr)
        top = json.loads(told.stdout)["outputs"]["probabilities"]["top"][0]
        order = [row["index"] for row in top]
        self.expect(order == numpy.argsort(-wanted, kind="stable")[:3].tolist() and len(set(wanted)) == CLASSES, f"{name}: classes {order}")
        self.expect(all(row["label"] == f"class {row['index']}" for row in top), f"{name}: labels {top}")
        self.expect(all(abs(row["value"] - shares[row["index"]]) < 1e-4 for row in top), f"{name}: probabilities {top}, {shares}")
        return error

    def picture(self, name, stem, kind, config, processor, values):
        torch, numpy, folder = self.torch, self.numpy, self.folder / name
        model = self.make(name, stem, "ForImageClassification" + kind, config)
        processor = getattr(self.transformers, processor + "ImageProcessorPil")(**values)
        processor.save_pretrained(folder)
        y, x = numpy.mgrid[0:61, 0:83]
        noise = numpy.random.default_rng(1).integers(0, 90, (61, 83, 3))
        rgb = (numpy.stack([x * 2, y * 2, (x * y) % 160], 2) + noise).astype(numpy.uint8)
        (folder / "picture.ppm").write_bytes(b"P6 83 61 255\n" + rgb.tobytes())
        given = processor(rgb, return_tensors="pt")["pixel_values"]
        size = [ctypes.c_int64(n) for n in rgb.shape[:2]]
        at = rgb.ctypes.data_as(ctypes.c_void_p)
        mine = self.library.run("tn_classifier_prepare", folder, at, *size, count=given.numel()).reshape(given.shape)
        far = (numpy.abs(mine - given.numpy()) * numpy.array(processor.image_std)[:, None, None]).max() * 255
        self.expect(far < 1.01, f"{name}: the prepared picture differs by {far:.2f} steps of 255")
        with torch.no_grad():
            wanted = model(torch.from_numpy(mine)).logits[0].numpy()
        got = self.library.run("tn_classifier_picture", folder, at, *size, count=CLASSES)
        error = self.compare(name, got, wanted, LOGITS_BOUND, folder / "picture.ppm", False)
        exported = self.exported(name, model, mine, folder / "picture.ppm", wanted)
        print(f"{name}: logits {error:.1e}, as ONNX {exported:.1e}, prepared picture {far:.2f}/255", flush=True)

    def exported(self, name, model, given, file, wanted):
        """The network as an ONNX file in a folder below, of which the command is given the picture."""
        numpy, path = self.numpy, self.folder / name / "onnx" / "model.onnx"
        path.parent.mkdir()
        logits = self.torch.nn.Module()
        logits.model, logits.forward = model, lambda x: model(x).logits
        self.torch.onnx.export(logits, (self.torch.from_numpy(given),), path, input_names=["pixel_values"],
                               output_names=["logits"], dynamo=False)
        told = subprocess.run([self.program, "run", path, file, "--json"], capture_output=True, text=True)
        if told.returncode:
            raise RuntimeError(told.stderr)
        logits = json.loads(told.stdout)["outputs"]["logits"]
        error = numpy.abs(numpy.array(logits["values"]) - wanted).max() / numpy.abs(wanted).max()
        self.expect(error <= LOGITS_BOUND, f"{name}: logits of the ONNX file differ by {error:.2g} of the largest")
        best = int(wanted.argmax())
        self.expect(logits["top"][0][0]["label"] == f"class {best}", f"{name}: the ONNX file's classes are {logits['top']}")
        return error

    def sound(self, name, stem, kind, config, extractor, values):
        torch, numpy, folder = self.torch, self.numpy, self.folder / name
        model = self.make(name, stem, kind, config)
        extractor = getattr(self.transformers, extractor + "FeatureExtractor")(**values)
        extractor.save_pretrained(folder)
        sound = (numpy.random.default_rng(3).normal(size=6000) * 2000).astype("<i2")
        with wave.open(str(folder / "sound.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(sound.tobytes())
        samples = sound.astype(numpy.float32) / 32768
        given = extractor(samples, sampling_rate=16000, return_tensors="pt")
        with torch.no_grad():
            wanted = model(next(iter(given.values()))).logits[0].numpy()
        at = samples.ctypes.data_as(ctypes.c_void_p)
        got = self.library.run("tn_classifier_sound", folder, at, ctypes.c_int64(len(samples)), count=CLASSES)
        error = self.compare(name, got, wanted, SOUND_BOUND, folder / "sound.wav", "problem_type" in config)
        print(f"{name}: logits {error:.1e}", flush=True)


def main():
    in_peers_python("transformers", "pillow", "onnx")
    import numpy
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="trunnion-classify-") as folder:
        suite = Suite(pathlib.Path(sys.argv[1]), pathlib.Path(folder), torch, transformers, numpy)
        for one, rows in ((suite.picture, PICTURES), (suite.sound, SOUNDS)):
            for row in rows:
                if sys.argv[2:] and row[0] not in sys.argv[2:]:
                    continue
                try:
                    one(*row)
                except RuntimeError as fault:  # of the command or library
                    suite.expect(False, f"{row[0]}: {fault}")
    print(f"{suite.passed} passed, {suite.failed} failed, 0 skipped")
    return 1 if suite.failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
