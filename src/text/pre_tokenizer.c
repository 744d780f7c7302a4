/* pre_tokenizer.c — pre-tokenizers: steps of tokenizer.json, and the rules that GGUF files name. */
#include <stdio.h>
#include <string.h>

#include "text/hf.h"
#include "text/tokenizer.h"

#include "gen/scripts.h"

/* ==== tokenizer.json ============================================================================================== */
/* Most are the same act: a text falls into matches and what lies between, and a behaviour says which of these join,
 * stay or go. */

tn_status tn_hf_pass(tn_hf_work *w, int index, const char *text, size_t size, bool first) {
    if (size == 0) return TN_OK;
    if (index >= w->hf->cutters.count) return w->hf->model(w, text, size);
    const tn_hf_step *s = &w->hf->cutters.items[index];
    return s->row->cut(w, s, text, size, first);
}

/* ---- matches and what becomes of them ---------------------------------------------------------------------------- */

/* A piece waits until it is known whether the next one joins it. */
typedef struct cutting {
    tn_hf_work *w;
    const tn_hf_step *step;
    const char *text;
    size_t begin, end; /* of the piece that waits */
    bool first, waits, matched;
} cutting;

static tn_status flush(cutting *k) {
    if (!k->waits) return TN_OK;
    k->waits = false;
    return tn_hf_pass(k->w, k->step->index + 1, k->text + k->begin, k->end - k->begin, k->first && k->begin == 0);
}

/* Whether a piece joins the one before it. */
static bool joins(tn_hf_behavior behavior, bool before, bool now) {
    switch (behavior) {
    case TN_HF_WITH_PREVIOUS: return now && !before;
    case TN_HF_WITH_NEXT: return before && !now;
    case TN_HF_CONTIGUOUS: return before == now;
    default: return false;
    }
}

static tn_status take_pre_tokenizer(cutting *k, size_t begin, size_t end, bool matched) {
    bool joined = k->waits && joins(k->step->behavior, k->matched, matched);
    if (joined) {
        k->end = end;
    } else {
        TRY(flush(k));
        k->waits = k->step->behavior != TN_HF_REMOVED || !matched;
        k->begin = begin;
        k->end = end;
    }
    k->matched = matched;
    return TN_OK;
}

/* Cuts at every character of a kind. */
static tn_status cut_at(cutting *k, size_t size, bool (*is)(uint32_t c)) {
    size_t start = 0;
    for (size_t at = 0, length; at < size; at += length) {
        uint32_t c;
        length = tn_hf_char(k->text + at, size - at, &c);
        if (!is(c)) continue;
        if (at > start) TRY(take_pre_tokenizer(k, start, at, false));
        TRY(take_pre_tokenizer(k, at, at + length, true));
        start = at + length;
    }
    if (size > start) TRY(take_pre_tokenizer(k, start, size, false));
    return flush(k);
}

/* The same for one character, whose bytes are looked for. */
static tn_status cut_at_text(cutting *k, size_t size, const char *sign, size_t length) {
    size_t start = 0;
    for (size_t at = 0; at + length <= size;) {
        const char *found = memchr(k->text + at, sign[0], size - at - length + 1);
        if (!found) break;
        at = (size_t)(found - k->text);
        if (memcmp(found, sign, length) != 0) {
            at++;
            continue;
        }
        if (at > start) TRY(take_pre_tokenizer(k, start, at, false));
        TRY(take_pre_tokenizer(k, at, at + length, true));
        start = at += length;
    }
    if (size > start) TRY(take_pre_tokenizer(k, start, size, false));
    return flush(k);
}

static tn_status cut_by_pattern(cutting *k, size_t size, bool invert) {
    size_t start = 0, begin, end;
    tn_hf_matches state = {0};
    for (;;) {
        bool found;
        TRY(tn_hf_next_match(k->step->pattern, &k->w->matcher, k->text, size, &state, &found, &begin, &end));
        if (!found) break;
        if (begin > start) TRY(take_pre_tokenizer(k, start, begin, invert));
        TRY(take_pre_tokenizer(k, begin, end, !invert));
        start = end;
    }
    if (size > start) TRY(take_pre_tokenizer(k, start, size, invert));
    return flush(k);
}

#define CUTTING \
    { .w = w, .step = s, .text = text, .first = first }

/* ---- by kinds of characters -------------------------------------------------------------------------------------- */

static const char *const behaviors[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};

static tn_status read_behavior(tn_hf_step *s, const tn_json *v, bool needed) {
    const tn_json *name = tn_hf_get(v, "behavior");
    s->behavior = TN_HF_ISOLATED;
    for (int i = 0; i <= TN_HF_CONTIGUOUS; i++) {
        if (!tn_hf_is(name, behaviors[i])) continue;
        s->behavior = (tn_hf_behavior)i;
        return TN_OK;
    }
    if (!name && !needed) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: the behavior of a pre-tokenizer must be Removed, Isolated, "
                                          "MergedWithPrevious, MergedWithNext or Contiguous");
}

static tn_status read_removed(tn_hf_step *s, TN_UNUSED const tn_json *v) {
    s->behavior = TN_HF_REMOVED;
    return TN_OK;
}

static tn_status cut_whitespace_split(tn_hf_work *w, const tn_hf_step *s, const char *text, size_t size, bool first) {
    cutting k = CUTTING;
    return cut_at(&k, size, tn_hf_is_space);
}

static tn_status read_punctuation(tn_hf_step *s, const tn_json *v) { return read_behavior(s, v, false); }

static tn_status cut_punctuation(tn_hf_work *w, const tn_hf_step *s, const char *text, size_t size, bool first) {
    cutting k = CUTTING;
    return cut_at(&k, size, tn_hf_is_punctuation);
}

static tn_status read_digits(tn_hf_step *s, const tn_json *v) {
    bool single = tn_json_bool(tn_hf_get(v, "individual_digits"), false);
    s->behavior = single ? TN_HF_ISOLATED : TN_HF_CONTIGUOUS;
    return TN_OK;
}

static tn_status cut_digits(tn_hf_work *w, const tn_hf_step *s, const char *text, size_t size, bool first) {
    cutting k = CUTTING;
    return cut_at(&k, size, tn_hf_is_numeric);
}

static tn_status read_delimiter(tn_hf_step *s, const tn_json *v) {
    s->behavior = TN_HF_REMOVED;
    TRY(tn_hf_read_char(v, "delimiter", &s->c));
    return tn_hf_put(&s->text, s->c);
}

static tn_status cut_delimiter(tn_hf_work *w, const tn_hf_step *s, const char *text, size_t size, bool first) {
    cutting k = CUTTING;
    return cut_at_text(&k, size, s->text.data, s->text.size);
}

/* White space parts words and goes; every punctuation mark is a word of its own. */
static tn_status cut_bert(tn_hf_work *w, const tn_hf_step *s, const char *text, size_t size, bool first) {
    size_t start = 0;
    for (size_t at = 0, length; at < size; at += length) {
        uint32_t c;
        length = tn_hf_char(text + at, size - at, &c);
        bool space = tn_hf_is_space(c), mark = !space && tn_hf_is_punctuation(c);
        if (!space && !mark) continue;
        TRY(tn_hf_pass(w, s->index + 1, text + start, at - start, first && start == 0));
        if (mark) TRY(tn_hf_pass(w, s->index + 1, text + at, length, first && at == 0));
        start = at + length;
    }
    return tn_hf_pass(w, s->index + 1, text + start, size - start, first && start == 0);
}

/* Runs of word characters, and runs of characters that are neither word characters nor white space. */
static tn_status cut_whitespace(tn_hf_work *w, const tn_hf_step *s, const char *text, size_t size, bool first) {
    enum { NONE, WORD, OTHER } kind = NONE, now;
    size_t start = 0;
    for (size_t at = 0, length; at < size; at += length) {
        uint32_t c;
        length = tn_hf_char(text + at, size - at, &c);
        now = tn_hf_is_word(c) ? WORD : tn_hf_is_space(c) ? NONE : OTHER;
        if (now == kind) continue;
        if (kind != NONE) TRY(tn_hf_pass(w, s->index + 1, text + start, at - start, first && start == 0));
        start = at;
        kind = now;
    }
    return kind == NONE ? TN_OK : tn_hf_pass(w, s->index + 1, text + start, size - start, first && start == 0);
}

static tn_status read_fixed(tn_hf_step *s, const tn_json *v) {
    s->n = tn_json_int(tn_hf_get(v, "length"), 5);
    return s->n > 0 ? TN_OK : tn_backend_fail(TN_ERR_FORMAT, "tokenizer: FixedLength needs a positive length");
}

static tn_status cut_fixed(tn_hf_work *w, const tn_hf_step *s, const char *text, size_t size, bool first) {
    size_t start = 0;
    int64_t count = 0;
    for (size_t at = 0; at < size;) {
        uint32_t c;
        at += tn_hf_char(text + at, size - at, &c);
        if (++count < s->n && at < size) continue;
        TRY(tn_hf_pass(w, s->index + 1, text + start, at - start, first && start == 0));
        start = at;
        count = 0;
    }
    return TN_OK;
}

/* ---- by patterns ------------------------------------------------------------------------------------------------- */

static tn_status read_split(tn_hf_step *s, const tn_json *v) {
    TRY(read_behavior(s, v, true));
    s->on[0] = tn_json_bool(tn_hf_get(v, "invert"), false);
    return tn_hf_read_pattern(tn_hf_get(v, "pattern"), &s->pattern);
}

static tn_status cut_split(tn_hf_work *w, const tn_hf_step *s, const char *text, size_t size, bool first) {
    cutting k = CUTTING;
    return cut_by_pattern(&k, size, s->on[0]);
}

/* ---- byte level -------------------------------------------------------------------------------------------------- */

enum { PREFIX_SPACE, USE_REGEX }; /* ByteLevel's options */

static tn_status read_byte_level(tn_hf_step *s, const tn_json *v) {
    static const char words[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" TN_TXT_SPACE "\\p{L}\\p{N}]+|"
                                "[" TN_TXT_SPACE "]+(?![^" TN_TXT_SPACE "])|[" TN_TXT_SPACE "]+";
    s->behavior = TN_HF_ISOLATED;
    s->on[PREFIX_SPACE] = tn_json_bool(tn_hf_get(v, "add_prefix_space"), true);
    s->on[USE_REGEX] = tn_json_bool(tn_hf_get(v, "use_regex"), true);
    return s->on[USE_REGEX] ? tn_txt_pattern_new(words, sizeof words - 1, &s->pattern) : TN_OK;
}

/* A word's bytes as letters; or as they are, where the model does that itself. */
static tn_status pass_letters(tn_hf_work *w, const tn_hf_step *s, const char *text, size_t size, bool first) {
    if (size == 0) return TN_OK;
    if (w->hf->letters_later && s->index + 1 == w->hf->cutters.count) return w->hf->model(w, text, size);
    tn_bytes *letters = &w->scratch[s->index];
    size_t before = letters->size; /* after the text itself, when a space was put in front of it */
    for (size_t i = 0; i < size; i++)
        TRY(tn_hf_put(letters, tn_txt_letter_of_byte((uint8_t)text[i])));
    tn_status status = tn_hf_pass(w, s->index + 1, letters->data + before, letters->size - before, first);
    letters->size = before;
    return status;
}

static tn_status cut_byte_level(tn_hf_work *w, const tn_hf_step *s, const char *text, size_t size, bool first) {
    AUTO_BYTES tn_bytes spaced = {0};
    w->scratch[s->index].size = 0;
    if (s->on[PREFIX_SPACE] && text[0] != ' ') {
        TRY(tn_bytes_append(&spaced, " ", 1));
        TRY(tn_bytes_append(&spaced, text, size));
        text = spaced.data;
        size = spaced.size;
    }
    size_t begin, end = 0, start = 0;
    tn_hf_matches state = {0};
    for (bool found = s->on[USE_REGEX]; found; start = end) {
        TRY(tn_hf_next_match(s->pattern, &w->matcher, text, size, &state, &found, &begin, &end));
        if (!found) break;
        if (begin > start) TRY(pass_letters(w, s, text + start, begin - start, first && start == 0));
        TRY(pass_letters(w, s, text + begin, end - begin, first && begin == 0));
    }
    return pass_letters(w, s, text + start, size - start, first && start == 0);
}

/* ---- Metaspace --------------------------------------------------------------------------------------------------- */

enum { ALWAYS, FIRST, SPLITS }; /* Metaspace's options */

static tn_status read_metaspace(tn_hf_step *s, const tn_json *v) {
    const tn_json *scheme = tn_hf_get(v, "prepend_scheme"), *add = tn_hf_get(v, "add_prefix_space");
    s->behavior = TN_HF_WITH_NEXT;
    s->on[FIRST] = tn_hf_is(scheme, "first");
    s->on[ALWAYS] = scheme ? tn_hf_is(scheme, "always") : tn_json_bool(add, true);
    s->on[SPLITS] = tn_json_bool(tn_hf_get(v, "split"), true);
    if (scheme && !s->on[FIRST] && !s->on[ALWAYS] && !tn_hf_is(scheme, "never"))
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: Metaspace's prepend_scheme must be first, always or never");
    TRY(tn_hf_read_char(v, "replacement", &s->c));
    return tn_hf_put(&s->text, s->c);
}

static tn_status cut_metaspace(tn_hf_work *w, const tn_hf_step *s, const char *text, size_t size, bool first) {
    tn_bytes *out = &w->scratch[s->index];
    bool there = text[0] == ' ' || tn_hf_begins(text, size, &s->text);
    out->size = 0;
    if (!there && (s->on[ALWAYS] || (s->on[FIRST] && first))) TRY(tn_bytes_append(out, s->text.data, s->text.size));
    for (size_t at = 0; at < size;) {
        const char *space = memchr(text + at, ' ', size - at);
        size_t plain = space ? (size_t)(space - text) - at : size - at;
        TRY(tn_bytes_append(out, text + at, plain));
        if (space) TRY(tn_bytes_append(out, s->text.data, s->text.size));
        at += plain + (space ? 1 : 0);
    }
    if (!s->on[SPLITS]) return tn_hf_pass(w, s->index + 1, out->data, out->size, first);
    cutting k = {.w = w, .step = s, .text = out->data, .first = first};
    return cut_at_text(&k, out->size, s->text.data, s->text.size);
}

/* ---- scripts ----------------------------------------------------------------------------------------------------- */

static uint8_t script_of(uint32_t c) {
    size_t low = tn_hf_planes[c >> 16], high = tn_hf_planes[(c >> 16) + 1];
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (tn_hf_run_begins[middle] <= (c & 0xffff))
            low = middle;
        else
            high = middle;
    }
    return tn_hf_run_scripts[low];
}

/* A new piece begins where the script changes; characters of none stay with what is before them, and are left out in
 * front of the first piece. */
static tn_status cut_scripts(tn_hf_work *w, const tn_hf_step *s, const char *text, size_t size, bool first) {
    cutting k = {.w = w, .step = s, .text = text, .first = first};
    uint8_t last = 0;
    size_t start = 0;
    for (size_t at = 0, length; at < size; at += length) {
        uint32_t c;
        length = tn_hf_char(text + at, size - at, &c);
        uint8_t script = script_of(c);
        if (script == 0 || script == last) continue;
        if (last != 0) TRY(take_pre_tokenizer(&k, start, at, false));
        start = at;
        last = script;
    }
    if (last != 0) TRY(take_pre_tokenizer(&k, start, size, false));
    return flush(&k);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

const tn_hf_row tn_hf_cutters[] = {
    {.name = "BertPreTokenizer", .read = tn_hf_read_nothing, .cut = cut_bert},
    {.name = "ByteLevel", .read = read_byte_level, .cut = cut_byte_level},
    {.name = "CharDelimiterSplit", .read = read_delimiter, .cut = cut_delimiter},
    {.name = "Metaspace", .read = read_metaspace, .cut = cut_metaspace},
    {.name = "Whitespace", .read = tn_hf_read_nothing, .cut = cut_whitespace},
    {.name = "WhitespaceSplit", .read = read_removed, .cut = cut_whitespace_split},
    {.name = "Punctuation", .read = read_punctuation, .cut = cut_punctuation},
    {.name = "Digits", .read = read_digits, .cut = cut_digits},
    {.name = "Split", .read = read_split, .cut = cut_split},
    {.name = "UnicodeScripts", .read = tn_hf_read_nothing, .cut = cut_scripts},
    {.name = "FixedLength", .read = read_fixed, .cut = cut_fixed},
    {0},
};

/* ==== GGUF ======================================================================================================== */
/* A rule is the list of regular expressions that the models' tokenizer.json files publish. Each is applied inside the
 * pieces that those before it have left; what it does not match stays as a piece of its own. White space is spelled out
 * as Unicode's White_Space (TN_TXT_SPACE). */

#define SPACE TN_TXT_SPACE
#define SPACES "[" SPACE "]+"
#define SPACES_BEFORE_WORD SPACES "(?![^" SPACE "])"
#define LINE_ENDS "[" SPACE "]*[\\r\\n]+"
#define SUFFIXES "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LETTERS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define MAX_POINTS " ?[^" SPACE "\\p{L}\\p{N}]+"
#define BLANKS LINE_ENDS "|" SPACES_BEFORE_WORD "|" SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(after) \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" after "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" after

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" MAX_POINTS "|" SPACES_BEFORE_WORD "|" SPACES
#define LLAMA3 SUFFIXES "|" LETTERS "|\\p{N}{1,3}|" MAX_POINTS "[\\r\\n]*|" BLANKS
#define QWEN2 SUFFIXES "|" LETTERS "|\\p{N}|" MAX_POINTS "[\\r\\n]*|" BLANKS
#define QWEN35 \
    SUFFIXES "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" SPACE "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" BLANKS
#define GPT4O CASED(SUFFIXES "?") "|\\p{N}{1,3}|" MAX_POINTS "[\\r\\n/]*|" BLANKS
#define TEKKEN CASED("") "|\\p{N}|" MAX_POINTS "[\\r\\n/]*|" BLANKS
#define DEEPSEEK3                                                                                        \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|" \
    " ?[\\p{P}\\p{S}]+[\\r\\n]*|" BLANKS
#define BLOOM " ?[^(" SPACE "|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"
#define BAILING                                                                                                 \
    "'(?i:[sdmt]|ll|ve|re)|" LETTERS "|\\p{N}|" MAX_POINTS "[\\r\\n]*|[" SPACE "]*[\\r\\n]|" SPACES_BEFORE_WORD \
    "|" SPACES
#define SEED_CODER SUFFIXES "|" LETTERS "|\\p{N}| ?[^" SPACE "\\p{L}\\p{N}\\r\\n]+|" BLANKS

static const char *const plain[] = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"};
static const char *const gpt2[] = {GPT2};
static const char *const digits_gpt2[] = {"\\p{N}", GPT2};
static const char *const llama3[] = {LLAMA3};
static const char *const qwen2[] = {QWEN2};
static const char *const qwen35[] = {QWEN35};
static const char *const gpt4o[] = {GPT4O};
static const char *const tekken[] = {TEKKEN};
static const char *const falcon[] = {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"};
static const char *const deepseek3[] = {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
                                        DEEPSEEK3};
static const char *const bloom[] = {BLOOM};
static const char *const viking[] = {BLOOM, "\\p{N}"};
static const char *const bailing[] = {BAILING};
static const char *const seed_coder[] = {SEED_CODER};

#define PATTERNS(list) .patterns = list, .count = sizeof list / sizeof *list

static const tn_txt_rule rule_plain = {PATTERNS(plain)};
static const tn_txt_rule rule_gpt2 = {PATTERNS(gpt2)};
static const tn_txt_rule rule_digits = {PATTERNS(digits_gpt2)};
static const tn_txt_rule rule_llama3 = {PATTERNS(llama3), .whole_words = true, .add_bos = true};
static const tn_txt_rule rule_dbrx = {PATTERNS(llama3)};
static const tn_txt_rule rule_glm4 = {PATTERNS(llama3), .whole_words = true};
static const tn_txt_rule rule_qwen2 = {PATTERNS(qwen2)};
static const tn_txt_rule rule_qwen35 = {PATTERNS(qwen35)};
static const tn_txt_rule rule_gpt4o = {PATTERNS(gpt4o)};
static const tn_txt_rule rule_tekken = {PATTERNS(tekken), .whole_words = true, .add_bos = true};
static const tn_txt_rule rule_falcon = {PATTERNS(falcon)};
static const tn_txt_rule rule_deepseek3 = {PATTERNS(deepseek3)};
static const tn_txt_rule rule_bloom = {PATTERNS(bloom)};
static const tn_txt_rule rule_viking = {PATTERNS(viking)};
static const tn_txt_rule rule_bailing = {PATTERNS(bailing)};
static const tn_txt_rule rule_seed_coder = {PATTERNS(seed_coder)};

typedef struct named_rule {
    const char *name;
    const tn_txt_rule *rule;
} named_rule;

// clang-format off
static const named_rule rules[] = {
    {"default", &rule_plain},
    {"gpt-2", &rule_gpt2}, {"phi-2", &rule_gpt2}, {"mpt", &rule_gpt2}, {"olmo", &rule_gpt2}, {"jais", &rule_gpt2},
    {"trillion", &rule_gpt2}, {"exaone4", &rule_gpt2}, {"modern-bert", &rule_gpt2}, {"gigachat", &rule_gpt2},
    {"granite-docling", &rule_gpt2},
    {"smollm", &rule_digits}, {"starcoder", &rule_digits}, {"refact", &rule_digits}, {"command-r", &rule_digits},
    {"codeshell", &rule_digits}, {"exaone", &rule_digits}, {"minerva-7b", &rule_digits},
    {"llama-bpe", &rule_llama3}, {"llama3", &rule_llama3}, {"llama-v3", &rule_llama3}, {"falcon3", &rule_llama3},
    {"falcon-h1", &rule_llama3}, {"pixtral", &rule_llama3}, {"lfm2", &rule_llama3}, {"midm-2.0", &rule_llama3},
    {"dbrx", &rule_dbrx}, {"smaug-bpe", &rule_dbrx},
    {"chatglm-bpe", &rule_dbrx}, {"glm4", &rule_glm4},
    {"qwen2", &rule_qwen2}, {"deepseek-r1-qwen", &rule_qwen2}, {"stablelm2", &rule_qwen2}, {"megrez", &rule_qwen2},
    {"hunyuan", &rule_qwen2}, {"grok-2", &rule_qwen2},
    {"qwen35", &rule_qwen35},
    {"gpt-4o", &rule_gpt4o}, {"llama4", &rule_gpt4o}, {"minimax-m2", &rule_gpt4o},
    {"tekken", &rule_tekken},
    {"falcon", &rule_falcon},
    {"deepseek-v3", &rule_deepseek3}, {"hunyuan-dense", &rule_deepseek3},
    {"bloom", &rule_bloom}, {"poro-chat", &rule_bloom}, {"gpt3-finnish", &rule_bloom},
    {"viking", &rule_viking},
    {"bailingmoe", &rule_bailing}, {"bailingmoe2", &rule_bailing}, {"llada-moe", &rule_bailing},
    {"seed-coder", &rule_seed_coder},
};
// clang-format on

const tn_txt_rule *tn_txt_find_rule(const char *name) {
    char known[1024];
    size_t length = 0;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (!strcmp(rules[i].name, name)) return rules[i].rule;
        int n = snprintf(known + length, sizeof known - length, "%s%s", i ? ", " : "", rules[i].name);
        if (n > 0 && (size_t)n < sizeof known - length) length += (size_t)n;
    }
    tn_backend_fail(TN_ERR_UNSUPPORTED, "tokenizer: the pre-tokenizer \"%.64s\" is not supported; supported are %s",
                    name, known);
    return NULL;
}

/* ---- a compiled rule --------------------------------------------------------------------------------------------- */

struct tn_txt_cutter {
    tn_txt_pattern *patterns[TN_TXT_MAX_PATTERNS];
    int count;
};

tn_status tn_txt_cutter_new(const tn_txt_rule *rule, tn_txt_cutter **out) {
    *out = NULL;
    tn_txt_cutter *c = tn_txt_zalloc(1, sizeof *c);
    if (!c) return TN_ERR_MEMORY;
    for (int i = 0; i < rule->count; i++) {
        tn_status status = tn_txt_pattern_new(rule->patterns[i], strlen(rule->patterns[i]), &c->patterns[i]);
        if (status != TN_OK) {
            tn_txt_cutter_free(c);
            return status;
        }
        c->count = i + 1;
    }
    *out = c;
    return TN_OK;
}

void tn_txt_cutter_free(tn_txt_cutter *c) {
    if (!c) return;
    for (int i = 0; i < c->count; i++)
        tn_txt_pattern_free(c->patterns[i]);
    tn_txt_free(c);
}

/* ---- cutting ----------------------------------------------------------------------------------------------------- */

typedef struct cut_run {
    const tn_txt_cutter *cutter;
    tn_txt_matcher matcher;
    const char *subject; /* the text that is matched … */
    const char *words;   /* … and the text that is passed on, with each byte at the same offset */
    tn_txt_word take;
    void *ctx;
} cut_run;

static size_t character_length(const char *text, size_t size) {
    size_t length = tn_txt_utf8(text, size, NULL);
    return length > 0 ? length : 1;
}

/* Cuts a piece by the patterns from `pattern` on. As deep as there are patterns. */
static tn_status cut_piece(cut_run *r, int pattern, const char *piece, size_t size) {
    if (pattern == r->cutter->count) return r->take(r->ctx, r->words + (piece - r->subject), size);
    size_t start = 0, from = 0, begin = 0, end = 0;
    while (from < size) {
        bool found;
        TRY(tn_txt_match(r->cutter->patterns[pattern], &r->matcher, piece, size, from, &found, &begin, &end));
        if (!found) break;
        if (begin > start) TRY(cut_piece(r, pattern + 1, piece + start, begin - start));
        if (end > begin) TRY(cut_piece(r, pattern + 1, piece + begin, end - begin));
        start = end;
        from = end > begin ? end : end + character_length(piece + end, size - end);
    }
    return start < size ? cut_piece(r, pattern + 1, piece + start, size - start) : TN_OK;
}

/* ---- texts that are not UTF-8 ------------------------------------------------------------------------------------ */

/* What the bytes at the begin of text encode if overlong forms and surrogates are let pass; 0 bytes for nothing. */
static size_t loose_character(const char *text, size_t size, uint32_t *c) {
    uint8_t lead = (uint8_t)text[0];
    size_t length = lead >= 0xc0 && lead < 0xe0   ? 2
                    : lead >= 0xe0 && lead < 0xf0 ? 3
                    : lead >= 0xf0 && lead < 0xf8 ? 4
                                                  : 0;
    if (length == 0 || length > size) return 0;
    *c = lead & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (((uint8_t)text[i] & 0xc0) != 0x80) return 0;
        *c = *c << 6 | ((uint8_t)text[i] & 0x3f);
    }
    return *c <= 0x10ffff ? length : 0;
}

/* Appends one character's bytes to the words and to the subject. */
static tn_status append_both(tn_bytes *words, tn_bytes *subject, const char *bytes, const char *matched, size_t size) {
    TRY(tn_bytes_append(words, bytes, size));
    return tn_bytes_append(subject, matched, size);
}

static tn_status repair_one(tn_bytes *words, tn_bytes *subject, const char *text, size_t size, size_t *taken) {
    static const char replacement[] = "\xef\xbf\xbd", nobody[] = "\xef\xbf\xbf";
    uint32_t c = 0;
    char spelled[4];
    *taken = loose_character(text, size, &c);
    if (*taken == 0) {
        *taken = 1;
        return append_both(words, subject, replacement, replacement, 3);
    }
    if (c >= 0xd800 && c < 0xe000) return append_both(words, subject, text, nobody, 3);
    size_t length = tn_txt_utf8_write(c, spelled);
    return append_both(words, subject, spelled, spelled, length);
}

/* The reference's reading of such texts: overlong forms mean their character, surrogates stay as they are, and any
 * other byte that is no part of UTF-8 becomes U+FFFD. PCRE2 must see UTF-8, so in `subject` U+FFFF, a character of no
 * class, stands for a surrogate; both come out equally long. */
static tn_status repair(tn_bytes *words, tn_bytes *subject, const char *text, size_t size) {
    while (size > 0) {
        size_t good = tn_txt_utf8_valid(text, size), taken = 0;
        TRY(append_both(words, subject, text, text, good));
        if (good < size) TRY(repair_one(words, subject, text + good, size - good, &taken));
        text += good + taken;
        size -= good + taken;
    }
    return TN_OK;
}

static tn_status cut_valid(cut_run *r, size_t size) {
    TRY(tn_txt_matcher_set(&r->matcher, size));
    return cut_piece(r, 0, r->subject, size);
}

tn_status tn_txt_cut(const tn_txt_cutter *c, const char *text, size_t size, tn_txt_word take, void *ctx) {
    cut_run r = {.cutter = c, .take = take, .ctx = ctx, .subject = text, .words = text};
    AUTO_BYTES tn_bytes words = {0}, subject = {0};
    tn_status status = TN_OK;
    if (tn_txt_utf8_valid(text, size) < size) {
        status = repair(&words, &subject, text, size);
        r.words = words.data;
        r.subject = subject.data;
        size = subject.size;
    }
    if (status == TN_OK) status = cut_valid(&r, size);
    tn_txt_matcher_free(&r.matcher);
    return status;
}
