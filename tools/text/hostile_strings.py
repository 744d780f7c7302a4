"""hostile_strings.py — texts that tokenizers get wrong, for the reference values of tools/text/ref_llm.py.

Each is a row (bytes, parse_special). By hand where a rule of some pre-tokenizer has an edge (digits, apostrophes, runs
of blanks, letters that are no letters elsewhere), by a fixed generator where only mixtures find the fault. The order is
part of the golden file; new ones go to the end of their part.
"""

import random

SEED = 20240611
LONGEST = 160  # characters of a generated text

EDGES = [
    "", " ", "  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", "\n\n\n", " \n", "\n ", "\t\t \n", "  \n  ", "\x00",
    "\x01\x02\x03", "\x7f",
    "\x1b[31mred\x1b[0m", "\x0b\x0c", "\x85", "\xa0", "\xa0\xa0word", "\u2028\u2029", "\ufeff", "\ufeffstart",
    "\u200b", "a\u200bb",
    "\u2060", "\u00ad", "soft\u00adhyphen", "\u202eabc\u202c", "\u061c", "\u3000", "\u3000\u3000全角", "\u1680",
    "\u2003em", "\u202f",
    "a", "A", "z", " a", "a ", " a ", "  a", "a  ", "   a", "a   b", "a\tb", "a\nb", "a\r\nb", "a \n b", "a\n\nb",
    "a \n\n b",
    "Hello", " Hello", "Hello ", "hello world", "Hello, world!", "Hello,world!", "HELLO WORLD", "hElLo", "helloworld",
    "I'm", "I'M", "you're", "YOU'RE", "don't", "DON'T", "we've", "he'll", "she'd", "it's", "'s", "'S", "'", "''",
    "'''", "' s",
    "’s", "I’m", "don’t", "'tis", "rock 'n' roll", "x's'y't'z", "'re'll've'd'm't's", "l'été", "d’accord",
    "0", "1", "12", "123", "1234", "12345", "1234567890", " 1", " 12", "  12", "1 2 3", "1a2b3c", "a1b2c3", "3.14159",
    "1,000,000",
    "1e-10", "0x7fff", "١٢٣", "१२३", "１２３", "²³¹", "½¼¾", "Ⅳ", "①②③", "〇一二三", "𝟘𝟙𝟚", "٠", "৪৫", "1٢3", "2²", "x²",
    "H₂O",
    "0000000000000000", "9" * 40, "1" * 100, "12:34:56", "2024-06-11", "+49 (0)30 123-456", "192.168.0.1", "50%",
    "$5.00", "€5", "5€", "№5",
    "!", "!!", "!!!", "?!", "...", "…", "......", "--", "---", "—", "–", "-", "_", "__init__", "*", "**bold**", "#",
    "# title", "### a",
    "`code`", "```python\nprint(1)\n```", "<b>x</b>", "</", "/>", "&amp;", "a&b", "a+b=c", "a==b", "a!=b", "->", "=>",
    "::", ":=", "|>",
    "(((", ")))", "[]{}()", "\"quoted\"", "“quoted”", "«guillemets»", "„unten“", "'single'", "\\n", "\\\\",
    "C:\\Users\\x", "/usr/bin/env",
    "~!@#$%^&*()_+", "{}[]|\\:;\"'<>,.?/", " !", " .", " ,", "a .", "a. b", "a.b.c", "e.g.", "U.S.A.", "foo_bar",
    "fooBar", "FooBar", "foo-bar",
    "def f(x):\n    return x + 1\n", "if (a) {\n\tb();\n}\n", "for i in range(10):\n        pass", "    indented",
    "\tindented", "\t    mixed",
    "int main(void)\n{\n\treturn 0;\n}", "SELECT * FROM t WHERE a='b';", "https://example.com/a?b=c&d=e#f",
    "user@example.com", "<!-- c -->",
    "ä", "Ä", "ö", "é", "e\u0301", "n\u0303", "A\u030a", "Å", "Å", "ſ", "ß", "ẞ", "ﬁ", "ﬃ", "ĳ", "ŉ", "ǆ", "İ", "ı",
    "Ω", "Ω", "µ", "μ",
    "naïve café", "Zürich", "Ñandú", "Łódź", "Đà Nẵng", "Tiếng Việt", "tie\u0302\u0301ng", "o\u0308\u0308\u0308",
    "Z\u0351\u036b\u0343\u036aa\u0302\u034al\u034fgo",
    "\u0301", " \u0301", "a\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301", "\u0301a", "1\u0301", "!\u0301",
    "Привет, мир!", "Ёлка", "україна", "Γειά σου", "ΓΕΙΆ", "שלום", "שָׁלוֹם", "مرحبا", "مَرْحَبًا", "السلام عليكم",
    "سلام\u200cدنیا", "नमस्ते", "क्षत्रिय",
    "বাংলা", "தமிழ்", "తెలుగు", "ಕನ್ನಡ", "മലയാളം", "සිංහල", "ภาษาไทย", "ພາສາລາວ", "မြန်မာ", "ខ្មែរ", "བོད་སྐད",
    "ქართული", "ᲥᲐᲠᲗᲣᲚᲘ", "Հայերեն", "አማርኛ",
    "ᏣᎳᎩ", "ᐃᓄᒃᑎᑐᑦ", "ᚠᚢᚦᚨᚱᚲ", "中文", "你好，世界！", "漢字かな交じり文", "日本語 テスト", "ｶﾀｶﾅ", "カタカナ", "ひらがな", "が", "か\u3099", "한국어",
    "한국어",
    "안녕하세요 세계", "ㅋㅋㅋ", "𠀀𠀁", "𪚥", "丽", "㍿", "㎏", "（全角）", "ＡＢＣ", "ａｂｃ", "。、！？", "「」『』", "・・・", "〜",
    "😀", "😀😀", "😀 😀", " 😀", "a😀b", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇩🇪🇫🇷", "1️⃣", "#️⃣", "☺", "☺️", "❤️‍🔥", "🧑🏿‍🚀",
    "👩‍👩‍👦", "🤷🏻‍♀️", "♥", "✓", "★☆",
    "→←↑↓", "∑∫√∞≈≠≤≥", "∀x∈ℝ: x²≥0", "ℵ₀", "⟨ψ|φ⟩", "𝒜𝓑𝔠", "𝐇𝐞𝐥𝐥𝐨", "░▒▓█", "┌─┐", "♔♕", "🀄", "🂡", "\ue000", "\uf8ff",
    "\ufffd", "\ufffe", "\uffff",
    "\U0010ffff", "\U000e0041", "\ufe0f", "\u200d", "a\u200d", "\u200da", "\u0378", "\U0001f9ff\u200d\u200d", "\u1160",
    "\u115f", "\u2800",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<unk>", "<pad>", "<|im_start|", "|im_start|>",
    "<|im_start |>", "< |im_start|>",
    "<|IM_START|>", "<|im_start|><|im_start|>", "a<|im_end|>b", " <|im_end|> ", "\n<|im_end|>\n", "<<|im_end|>>",
    "<|im_end|<|im_end|>>",
    "<repo_name>", "<file_sep>", "<filename>", "<gh_stars>", "<jupyter_start>", "<empty_output>", "<reponame>",
    "<|im_sep|>", "[INST]", "<<SYS>>",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "a" * 50, "ab" * 40, "aaaa bbbb" * 8, " " * 17, " " * 64, " " * 63 + "x", "\n" * 20, "\t" * 12, "\r\n" * 9,
    " \n" * 9, "\n \n  \n   x", "." * 40, "-" * 80,
    "=" * 33, "_" * 30, "#" * 20, "ha" * 30, "😀" * 12, "中" * 20, "é" * 20, "\u0301" * 10, "1a" * 20, "a1 " * 15,
    "' " * 10, "\x00" * 5, "<|" * 10,
    "Antidisestablishmentarianism", "Donaudampfschifffahrtsgesellschaft", "supercalifragilisticexpialidocious",
    "pneumonoultramicroscopicsilicovolcanoconiosis",
    "thequickbrownfoxjumpsoverthelazydog", "TheQuickBrownFox", "camelCaseIdentifierWithManyParts",
    "SCREAMING_SNAKE_CASE", "kebab-case-name",
    "ICECREAM", "iPhone", "McDonald's", "O'Neill", "vis-à-vis", "co-operate", "1st 2nd 3rd", "x86_64", "AVX-512",
    "C++17", "F#", "node.js", "a/b/c", "и/или",
    "mixed中文English", "русскийenglish", "abcабв", "123abc中文", "שלוםhello", "hello\u200fשלום", "1.5倍", "100元", "３個",
    "No.5", "a　b", "word\u3000word",
    # One letter in several spellings, which editors like to make one.
    "\u212b", "\u00c5", "A\u030a", "\u2126", "\u00e9", "\uac01", "\u1100\u1161\u11a8", "\u304c", "\u304b\u3099",
    "\uf900", "\u8c48",
]

TAGS = {"<s>", "</s>", "<unk>", "<repo_name>", "<file_sep>"}
SPECIAL = [text for text in EDGES if "<" in text and "|" in text or text in TAGS] + [

    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|> user", "x <|endoftext|> y", "<|endoftext|><|endoftext|>", "<repo_name>a/b<file_sep>c.py\nx = 1\n",
    " <|im_start|>", "<|im_start|>  \n",
    "text<|im_end|>\n\ntext", "😀<|im_end|>😀", "é<|im_start|>é",
]

# Bytes that are no UTF-8. Code points past U+10FFFF are missing: they end the peer's process.
INVALID = [
    b"\xff", b"\xfe", b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc3", b"a\xc3", b"\xc3(", b"a\xffb", b"\xe2\x82",
    b"\xe2\x28\xa1",
    b"\xed\xa0\x80", b"\xed\xa0\xbd\xed\xb8\x80", b"\xf0\x9f\x98", b"\xf0\x28\x8c\xbc",
    b"\xf8\x88\x80\x80\x80",
    b"ok \x80\x80 ok", b"\xffHello", b"Hello\xff", b"\xff\xff\xff\xff", b"caf\xe9", b"\xa9 2024",
]

ALPHABETS = [
    "abcdefgh XYZ", "0123456789 .,", " \t\n\r", "aA0 '’s", ".,;:!?-_ \n", "éüñçßøåāž ", "а б в г Ё ж", "あア漢字。 ",
    "한글 ㄱ", "😀👍🏽\u200d\ufe0f❤ ",
    "\u0301\u0308ae \u0323", "अआकषि् ", "ابتثء ً", "\x00\x01\x1f\x7f\x85\xa0", "<|>im_start/end s",
    "{}[]()=+*/\\\"'\n\t", "①½²ⅣⅫ 1", "\u2028\u200b\ufeff\u3000 a",
]


def generated(count):
    """Mixtures of two or three alphabets in runs of random length."""
    dice = random.Random(SEED)
    for _ in range(count):
        parts, room = [], dice.randint(1, LONGEST)
        alphabets = dice.sample(ALPHABETS, dice.choice([1, 2, 2, 3]))
        while room > 0:
            length = min(room, dice.choice([1, 1, 2, 3, 5, 8]))
            alphabet = dice.choice(alphabets)
            parts.append("".join(dice.choice(alphabet) for _ in range(length)))
            room -= length
        yield "".join(parts)


def rows():
    """(bytes, parse_special) of all."""
    for text in EDGES:
        yield text.encode(), False
    for text in generated(80):
        yield text.encode(), False
    for text in SPECIAL:
        yield text.encode(), True
    for data in INVALID:
        yield data, False
