/* pcre2_pattern.c — regular expressions by PCRE2: compiled once, matched with limits on steps and memory.
 *
 * PCRE2's limits bound the time on hostile texts and patterns. Where its compiler to machine code may not run or has
 * too little stack, its interpreter does the work. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/tokenizer.h"

enum {
    STEPS = 10000000,     /* of matching, for short texts (PCRE2's own default) … */
    STEPS_A_BYTE = 32,    /* … and more for long ones, because giving back a run of n characters takes n steps */
    HEAP_KIB = 256 << 10, /* for backtracking */
    MAX_PATTERN = 1 << 16 /* bytes */
};

tn_status tn_txt_pattern_new(const char *text, size_t size, tn_txt_pattern **out) {
    int error;
    PCRE2_SIZE offset;
    *out = NULL;
    if (size > MAX_PATTERN)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "tokenizer: a pattern of %zu bytes; %d are possible", size,
                               (int)MAX_PATTERN);
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)text, size, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, NULL);
    if (!code) {
        char why[128] = "";
        if (error == PCRE2_ERROR_NOMEMORY) return tn_backend_fail(TN_ERR_MEMORY, "tokenizer: out of memory");
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "tokenizer: the pattern \"%.*s\" does not compile: %s, at %zu",
                               size < 200 ? (int)size : 200, text, why, (size_t)offset);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* where it may not, matching is slower and nothing else */
    *out = (tn_txt_pattern *)code;
    return TN_OK;
}

void tn_txt_pattern_free(tn_txt_pattern *p) { pcre2_code_free((pcre2_code *)p); }

static tn_status match_failed(int code, size_t size) {
    if (code == PCRE2_ERROR_NOMEMORY)
        return tn_backend_fail(TN_ERR_MEMORY, "tokenizer: out of memory while cutting %zu bytes into words", size);
    char text[128] = "";
    pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "tokenizer: cutting %zu bytes into words: %s. Hand the text over in parts", size, text);
}

tn_status tn_txt_matcher_set(tn_txt_matcher *m, size_t size) {
    size_t steps = size < (UINT32_MAX - STEPS) / STEPS_A_BYTE ? STEPS + STEPS_A_BYTE * size : UINT32_MAX;
    if (!m->found) m->found = pcre2_match_data_create(1, NULL);
    if (!m->limits) m->limits = pcre2_match_context_create(NULL);
    if (!m->found || !m->limits) return match_failed(PCRE2_ERROR_NOMEMORY, size);
    pcre2_set_match_limit(m->limits, (uint32_t)steps);
    pcre2_set_heap_limit(m->limits, HEAP_KIB);
    return TN_OK;
}

void tn_txt_matcher_free(tn_txt_matcher *m) {
    pcre2_match_data_free(m->found);
    pcre2_match_context_free(m->limits);
    *m = (tn_txt_matcher){0};
}

tn_status tn_txt_match(const tn_txt_pattern *p, tn_txt_matcher *m, const char *text, size_t size, size_t from,
                       bool *found, size_t *begin, size_t *end) {
    const pcre2_code *code = (const pcre2_code *)p;
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int result = pcre2_match(code, subject, size, from, PCRE2_NO_UTF_CHECK, m->found, m->limits);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter keeps its stack on the heap */
        result = pcre2_match(code, subject, size, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->found, m->limits);
    *found = result >= 0;
    if (result == PCRE2_ERROR_NOMATCH) return TN_OK;
    if (result < 0) return match_failed(result, size);
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(m->found);
    *begin = place[0];
    *end = place[1];
    if (*begin > *end || *begin < from) return match_failed(PCRE2_ERROR_BADOFFSET, size); /* by \K in a look-around */
    return TN_OK;
}
