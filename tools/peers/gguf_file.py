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
    from conversion import base

    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    said = base.ModelBase.load_hparams(pathlib.Path(folder), False)
    kind = conversion.get_model_class(conversion.get_model_architecture(said, base.ModelType.TEXT))
    model = kind(pathlib.Path(folder), gguf.LlamaFileType.ALL_F32, pathlib.Path(file), eager=True)
    model.set_vocab = model._set_vocab_gpt2
    model.write()


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
