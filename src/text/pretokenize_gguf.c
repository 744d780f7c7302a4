/* pretokenize_gguf.c — cuts a text into the words inside which byte-level BPE merges: a table of rules by the names
 * that GGUF files use (tokenizer.ggml.pre).
 *
 * A rule is the list of regular expressions that the models' tokenizer.json files publish. Each is applied inside the
 * pieces that those before it have left; what it does not match stays as a piece of its own. White space is spelled out
 * as Unicode's White_Space (TN_TXT_SPACE). */
#include <stdio.h>
#include <string.h>

#include "text/tokenizer.h"

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
    tn_backend_fail(TN_ERR_UNSUPPORTED, "tokenizer: the rule \"%.64s\" for cutting words is not known; known are %s",
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
    const char *subject; /* what is matched … */
    const char *words;   /* … and what is handed on, byte for byte at the same places */
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

/* ---- texts that are no UTF-8 ------------------------------------------------------------------------------------- */

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

/* Appends one character's bytes to what is handed on and to what is matched. */
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
    tn_bytes words = {0}, subject = {0};
    tn_status status = TN_OK;
    if (tn_txt_utf8_valid(text, size) < size) {
        status = repair(&words, &subject, text, size);
        r.words = words.data;
        r.subject = subject.data;
        size = subject.size;
    }
    if (status == TN_OK) status = cut_valid(&r, size);
    tn_txt_matcher_free(&r.matcher);
    tn_bytes_free(&words);
    tn_bytes_free(&subject);
    return status;
}
