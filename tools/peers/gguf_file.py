"""gguf_file.py PYTHON FOLDER FILE — a Hugging Face folder as a GGUF file in f32, by llama.cpp's own conversion.

PYTHON: the folder with its packages conversion and gguf (tools/peers/llama_cpp.sh). The tokenizer is taken as GPT-2's,
because conversion knows tokenizers of released models alone. Needs torch, transformers and numpy.
"""

import logging
import pathlib
import sys


def main():
    packages, folder, file = sys.argv[1:4]
    sys.path.insert(0, packages)
    logging.disable(logging.WARNING)
    import conversion
    import gguf
    import transformers
    from conversion import base

    if "hybrid_override_pattern" in (pathlib.Path(folder) / "config.json").read_text():
        base.AutoConfig = None  # an older file is read as it is, not as transformers completes it
    # Some kinds of tokenizers bring tokens of their own.
    transformers.AutoTokenizer.from_pretrained = transformers.PreTrainedTokenizerFast.from_pretrained
    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    said = base.ModelBase.load_hparams(pathlib.Path(folder), False)
    kind = conversion.get_model_class(conversion.get_model_architecture(said, base.ModelType.TEXT))
    kind.no_mtp = True  # layers that guess further tokens, which transformers does not compute
    model = kind(pathlib.Path(folder), gguf.LlamaFileType.ALL_F32, pathlib.Path(file), eager=True)
    model.set_vocab = model._set_vocab_gpt2
    model.write()


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
