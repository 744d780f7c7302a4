/* pre_tokenizer.c — the pre-tokenizers of tokenizer.json: each cuts a piece of text and hands its parts on to the next
 * one, behind the last to the model. So a word is done before the one behind it is looked at, in one pass over the
 * text.
 *
 * Most are the same act: a text falls into matches and what lies between, and a behaviour says which of these join,
 * stay or go. */
#include <string.h>

#include <utf8proc.h>

#include "text/hf.h"
#include "text/scripts.h"

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
    return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: a pre-tokenizer's behavior must be Removed, Isolated, "
                                          "MergedWithPrevious, MergedWithNext or Contiguous");
}

static tn_status read_removed(tn_hf_step *s, const tn_json *v) {
    (void)v;
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

/* Runs of word characters, and runs of what is neither that nor white space. */
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
    size_t before = letters->size; /* behind the text itself, when a space was put in front of it */
    for (size_t i = 0; i < size; i++)
        TRY(tn_hf_put(letters, tn_txt_letter_of_byte((uint8_t)text[i])));
    tn_status status = tn_hf_pass(w, s->index + 1, letters->data + before, letters->size - before, first);
    letters->size = before;
    return status;
}

static tn_status cut_byte_level(tn_hf_work *w, const tn_hf_step *s, const char *text, size_t size, bool first) {
    tn_bytes spaced = {0};
    tn_status status = TN_OK;
    w->scratch[s->index].size = 0;
    if (s->on[PREFIX_SPACE] && text[0] != ' ') {
        status = tn_bytes_append(&spaced, " ", 1);
        if (status == TN_OK) status = tn_bytes_append(&spaced, text, size);
        text = spaced.data;
        size = spaced.size;
    }
    size_t begin, end = 0, start = 0;
    tn_hf_matches state = {0};
    for (bool found = s->on[USE_REGEX]; found && status == TN_OK; start = end) {
        status = tn_hf_next_match(s->pattern, &w->matcher, text, size, &state, &found, &begin, &end);
        if (status != TN_OK || !found) break;
        if (begin > start) status = pass_letters(w, s, text + start, begin - start, first && start == 0);
        if (status == TN_OK) status = pass_letters(w, s, text + begin, end - begin, first && begin == 0);
    }
    if (status == TN_OK) status = pass_letters(w, s, text + start, size - start, first && start == 0);
    tn_bytes_free(&spaced);
    return status;
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
