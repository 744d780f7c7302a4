/* onnxruntime.c — a stand-in for ONNX Runtime's library, for its failures: a table of functions that fail or are not
 * there. FAKE_VERSION: what it says of itself; FAKE_DOES=no-table: no interface of the version that is asked for;
 * no-call: a function is missing; no-base: OrtGetApiBase yields nothing; refuses: its first call fails. */
#include "fake.h"

typedef struct status {
    int code;
    const char *text;
} status;

static status refusal = {6, "the fake refuses"};

static int code_of(const status *s) { return s->code; }
static const char *text_of(const status *s) { return s->text; }
static void nothing(void) {}
static status *refuse(void) { return &refusal; }

static const void *table[220];

static const void *const *get_table(uint32_t version) {
    if (fake_does("no-table") || version > 31) return NULL;
    for (int i = 0; i < 220; i++)
        table[i] = (const void *)refuse;
    table[1] = (const void *)code_of;
    table[2] = (const void *)text_of;
    table[93] = table[122] = (const void *)nothing;
    if (fake_does("no-call")) table[119] = NULL;
    return table;
}

static const char *get_version(void) {
    const char *version = getenv("FAKE_VERSION");
    return version ? version : "1.31.1";
}

static const struct {
    const void *const *(*table)(uint32_t version);
    const char *(*version)(void);
} base = {get_table, get_version};

const void *OrtGetApiBase(void) {
    (void)fake_first_call();
    return fake_does("no-base") ? NULL : &base;
}
