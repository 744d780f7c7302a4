/* grammar_schema.c — a JSON schema as a grammar: which JSON texts match it, with the blanks that models write.
 *
 * Each schema becomes a rule. References are rules too, which are written after what refers to them, so this recurses
 * only as deep as the JSON text is nested (json.h: 64). A keyword that the grammar could not enforce is refused: an
 * answer would not match the schema. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/text_common.h"
#include "trunnion/json.h"

enum { MOST_REFERENCES = 1024, MOST_LENGTH = 1000, SMALL = 512 };

typedef struct schema_writer {
    tn_bytes *out;
    const tn_json *root;
    const tn_json *references[MOST_REFERENCES]; /* schemas that something refers to: rule "rN" is number N */
    int reference_count;
    int rules; /* named "sN" so far */
} schema_writer;

/* Appends short text. */
__attribute__((format(printf, 2, 3))) static tn_status put(tn_bytes *out, const char *format, ...) {
    char text[SMALL];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return tn_bytes_append(out, text, n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

/* ---- keywords ---------------------------------------------------------------------------------------------------- */

static bool is_one_of(const char *word, const char *const *words) {
    for (; *words; words++)
        if (strcmp(word, *words) == 0) return true;
    return false;
}

static tn_status check_keywords(const tn_json *schema) {
    static const char *const known[] = {"type",      "properties",  "required", "additionalProperties",
                                        "items",     "minItems",    "maxItems", "minLength",
                                        "maxLength", "enum",        "const",    "anyOf",
                                        "oneOf",     "$ref",        "$defs",    "definitions",
                                        "title",     "description", "default",  "examples",
                                        "$schema",   "$id",         "$comment", "deprecated",
                                        "readOnly",  "writeOnly",   NULL};
    for (size_t i = 0; i < tn_json_length(schema); i++)
        if (!is_one_of(tn_json_key(schema, i), known))
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "JSON schema: the keyword \"%.40s\" is not supported, because a grammar could not "
                                   "enforce it; remove it, or check the answer yourself",
                                   tn_json_key(schema, i));
    return TN_OK;
}

/* A count from 0 to MOST_LENGTH; `missing` if it is not given. */
static tn_status read_count(const tn_json *schema, const char *key, int64_t missing, int64_t *out) {
    const tn_json *v = tn_json_get(schema, key);
    *out = v ? tn_json_int(v, -1) : missing;
    if (!v || (*out >= 0 && *out <= MOST_LENGTH)) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "JSON schema: \"%s\" must be a whole number from 0 to %d", key,
                           (int)MOST_LENGTH);
}

/* {m,n} or {m,}; most -1: any number. */
static tn_status put_counts(tn_bytes *out, int64_t least, int64_t most) {
    if (most < 0) return put(out, "{%" PRId64 ",}", least);
    if (most >= least) return put(out, "{%" PRId64 ",%" PRId64 "}", least, most);
    return tn_backend_fail(
        TN_ERR_FORMAT, "JSON schema: at least %" PRId64 " and at most %" PRId64 " items or characters", least, most);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Bytes of a JSON text inside a literal of the grammar. */
static tn_status put_quoted(tn_bytes *out, const char *text, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '"' || text[i] == '\\') TRY(tn_bytes_append(out, "\\", 1));
        TRY(tn_bytes_append(out, text + i, 1));
    }
    return TN_OK;
}

/* The literal that spells this string in JSON. */
static tn_status put_string(tn_bytes *out, const char *text, size_t size) {
    TRY(put(out, "\"\\\""));
    for (size_t i = 0; i < size; i++) {
        char escaped[8];
        unsigned char c = (unsigned char)text[i];
        int n = c == '"' || c == '\\' ? snprintf(escaped, sizeof escaped, "\\%c", c)
                : c < 0x20            ? snprintf(escaped, sizeof escaped, "\\u%04x", c)
                                      : snprintf(escaped, sizeof escaped, "%c", c);
        TRY(put_quoted(out, escaped, (size_t)n));
    }
    return put(out, "\\\"\"");
}

static tn_status put_value(tn_bytes *out, const tn_json *v) {
    double x;
    switch (tn_json_kind_of(v)) {
    case TN_JSON_NULL: return put(out, "\"null\"");
    case TN_JSON_BOOL: return put(out, tn_json_bool(v, false) ? "\"true\"" : "\"false\"");
    case TN_JSON_STRING: return put_string(out, tn_json_string(v, ""), tn_json_length(v));
    case TN_JSON_NUMBER:
        x = tn_json_number(v, 0);
        return put(out, x == floor(x) && fabs(x) < 1e15 ? "\"%.0f\"" : "\"%.17g\"", x);
    default:
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "JSON schema: lists and objects in \"enum\" and \"const\" are not supported");
    }
}

/* ---- schemas ----------------------------------------------------------------------------------------------------- */

static tn_status write_schema(schema_writer *w, const tn_json *schema, int *rule);

/* Writes the text of one rule. */
static tn_status end_rule(schema_writer *w, const tn_bytes *body, int *rule) {
    *rule = w->rules++;
    TRY(put(w->out, "s%d ::= ", *rule));
    TRY(tn_bytes_append(w->out, body->data ? body->data : "", body->size));
    return put(w->out, "\n");
}

static tn_status put_choices(schema_writer *w, const tn_json *list, const char *key, tn_bytes *out) {
    if (tn_json_kind_of(list) != TN_JSON_ARRAY || tn_json_length(list) == 0)
        return tn_backend_fail(TN_ERR_FORMAT, "JSON schema: \"%s\" must be a list with at least one entry", key);
    bool values = strcmp(key, "enum") == 0;
    for (size_t i = 0; i < tn_json_length(list); i++) {
        int rule = 0;
        if (i) TRY(put(out, " | "));
        if (values)
            TRY(put_value(out, tn_json_at(list, i)));
        else
            TRY(write_schema(w, tn_json_at(list, i), &rule));
        if (!values) TRY(put(out, "s%d", rule));
    }
    return TN_OK;
}

/* "#", "#/$defs/NAME" or "#/definitions/NAME". */
static const tn_json *find_reference(const schema_writer *w, const char *path) {
    static const char *const folders[] = {"$defs", "definitions"};
    if (strcmp(path, "#") == 0) return w->root;
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(folders[i]);
        if (strncmp(path, "#/", 2) == 0 && strncmp(path + 2, folders[i], n) == 0 && path[2 + n] == '/')
            return tn_json_get(tn_json_get(w->root, folders[i]), path + 3 + n);
    }
    return NULL;
}

static tn_status put_reference(schema_writer *w, const char *path, tn_bytes *out) {
    const tn_json *target = find_reference(w, path);
    if (!target)
        return tn_backend_fail(TN_ERR_FORMAT,
                               "JSON schema: \"$ref\" \"%.60s\" leads nowhere; known are #, #/$defs/NAME and "
                               "#/definitions/NAME",
                               path);
    int i = 0;
    while (i < w->reference_count && w->references[i] != target)
        i++;
    if (i == MOST_REFERENCES)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "JSON schema: more than %d references", (int)MOST_REFERENCES);
    if (i == w->reference_count) w->references[w->reference_count++] = target;
    return put(out, "r%d", i);
}

static bool is_required(const tn_json *schema, const char *name) {
    const tn_json *list = tn_json_get(schema, "required");
    for (size_t i = 0; i < tn_json_length(list); i++)
        if (strcmp(tn_json_string(tn_json_at(list, i), ""), name) == 0) return true;
    return false;
}

static tn_status check_required(const tn_json *schema, const tn_json *properties) {
    const tn_json *list = tn_json_get(schema, "required");
    for (size_t i = 0; i < tn_json_length(list); i++) {
        const char *name = tn_json_string(tn_json_at(list, i), "");
        if (!tn_json_get(properties, name))
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "JSON schema: \"%.60s\" is required and not among the properties", name);
    }
    return TN_OK;
}

/* Properties come in the schema's order. Two rules a property, from the last to the first: what can follow once one
 * was written, and what if none was. */
static tn_status put_properties(schema_writer *w, const tn_json *schema, const tn_json *properties, tn_bytes *out) {
    AUTO_BYTES tn_bytes body = {0};
    int after = -1, before = -1; /* of the next property; -1: nothing follows */
    TRY(check_required(schema, properties));
    for (size_t i = tn_json_length(properties); i-- > 0;) {
        const char *name = tn_json_key(properties, i);
        int value = 0, next_after = 0, next_before = 0, pair = 0;
        bool needed = is_required(schema, name);
        char tail[2][16] = {"", ""};
        if (after >= 0) snprintf(tail[0], sizeof tail[0], " s%d", after);
        if (before >= 0) snprintf(tail[1], sizeof tail[1], "s%d", before);
        TRY(write_schema(w, tn_json_at(properties, i), &value));
        body.size = 0;
        TRY(put_string(&body, name, tn_json_key_length(properties, i)));
        TRY(put(&body, " \":\" ws s%d", value));
        TRY(end_rule(w, &body, &pair));
        body.size = 0;
        TRY(put(&body, needed ? "\",\" ws s%d%s" : "(\",\" ws s%d)?%s", pair, tail[0]));
        TRY(end_rule(w, &body, &next_after));
        body.size = 0;
        TRY(put(&body, "s%d%s", pair, tail[0]));
        if (!needed) TRY(put(&body, " | %s", before >= 0 ? tail[1] : "\"\""));
        TRY(end_rule(w, &body, &next_before));
        after = next_after;
        before = next_before;
    }
    return put(out, "\"{\" ws s%d ws \"}\"", before);
}

static tn_status put_object(schema_writer *w, const tn_json *schema, tn_bytes *out) {
    const tn_json *properties = tn_json_get(schema, "properties"), *more = tn_json_get(schema, "additionalProperties");
    bool none = tn_json_length(properties) == 0;
    if (more && tn_json_kind_of(more) != TN_JSON_BOOL)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "JSON schema: \"additionalProperties\" must be true or false");
    if (none && more && !tn_json_bool(more, true)) return put(out, "\"{\" ws \"}\"");
    return none ? put(out, "object") : put_properties(w, schema, properties, out);
}

static tn_status put_array(schema_writer *w, const tn_json *schema, tn_bytes *out) {
    int64_t least, most;
    int item = -1;
    char name[16] = "value";
    TRY(read_count(schema, "minItems", 0, &least));
    TRY(read_count(schema, "maxItems", -1, &most));
    if (tn_json_get(schema, "items")) TRY(write_schema(w, tn_json_get(schema, "items"), &item));
    if (item >= 0) snprintf(name, sizeof name, "s%d", item);
    if (most == 0) return least ? put_counts(out, least, most) : put(out, "\"[\" ws \"]\"");
    TRY(put(out, "\"[\" ws (%s (\",\" ws %s)", name, name));
    TRY(put_counts(out, least > 0 ? least - 1 : 0, most < 0 ? -1 : most - 1));
    return put(out, ")%s ws \"]\"", least > 0 ? "" : "?");
}

static tn_status put_text(const tn_json *schema, tn_bytes *out) {
    int64_t least, most;
    TRY(read_count(schema, "minLength", 0, &least));
    TRY(read_count(schema, "maxLength", -1, &most));
    if (least == 0 && most < 0) return put(out, "string");
    TRY(put(out, "\"\\\"\" char"));
    TRY(put_counts(out, least, most));
    return put(out, " \"\\\"\"");
}

static tn_status put_type(schema_writer *w, const tn_json *schema, const char *type, tn_bytes *out) {
    static const char *const plain[] = {"number", "integer", "boolean", "null", NULL};
    if (is_one_of(type, plain)) return put(out, "%s", type);
    if (strcmp(type, "object") == 0) return put_object(w, schema, out);
    if (strcmp(type, "array") == 0) return put_array(w, schema, out);
    if (strcmp(type, "string") == 0) return put_text(schema, out);
    return tn_backend_fail(TN_ERR_FORMAT,
                           "JSON schema: the type \"%.40s\" is unknown; known are object, array, string, number, "
                           "integer, boolean, null",
                           type);
}

static tn_status put_types(schema_writer *w, const tn_json *schema, const tn_json *type, tn_bytes *out) {
    if (tn_json_kind_of(type) != TN_JSON_ARRAY) return put_type(w, schema, tn_json_string(type, "(not a string)"), out);
    if (tn_json_length(type) == 0) return tn_backend_fail(TN_ERR_FORMAT, "JSON schema: the list of types is empty");
    for (size_t i = 0; i < tn_json_length(type); i++) {
        if (i) TRY(put(out, " | "));
        TRY(put_type(w, schema, tn_json_string(tn_json_at(type, i), "(not a string)"), out));
    }
    return TN_OK;
}

static tn_status put_schema(schema_writer *w, const tn_json *schema, tn_bytes *out) {
    if (tn_json_kind_of(schema) == TN_JSON_BOOL && tn_json_bool(schema, false)) return put(out, "value");
    if (tn_json_kind_of(schema) != TN_JSON_OBJECT)
        return tn_backend_fail(TN_ERR_FORMAT, "JSON schema: a schema must be an object, or true");
    TRY(check_keywords(schema));
    const tn_json *v;
    if ((v = tn_json_get(schema, "$ref"))) return put_reference(w, tn_json_string(v, ""), out);
    if ((v = tn_json_get(schema, "const"))) return put_value(out, v);
    if ((v = tn_json_get(schema, "enum"))) return put_choices(w, v, "enum", out);
    if ((v = tn_json_get(schema, "anyOf"))) return put_choices(w, v, "anyOf", out);
    if ((v = tn_json_get(schema, "oneOf"))) return put_choices(w, v, "oneOf", out);
    if ((v = tn_json_get(schema, "type"))) return put_types(w, schema, v, out);
    if (tn_json_get(schema, "properties")) return put_object(w, schema, out);
    if (tn_json_get(schema, "items")) return put_array(w, schema, out);
    return put(out, "value");
}

static tn_status write_schema(schema_writer *w, const tn_json *schema, int *rule) {
    AUTO_BYTES tn_bytes body = {0};
    TRY(put_schema(w, schema, &body));
    return end_rule(w, &body, rule);
}

static const char any_json[] =
    "ws ::= \" \"?\n"
    "value ::= object | array | string | number | boolean | null\n"
    "object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? ws \"}\"\n"
    "array ::= \"[\" ws (value (\",\" ws value)*)? ws \"]\"\n"
    "char ::= [^\"\\\\\\x00-\\x1f\\x7f] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4})\n"
    "string ::= \"\\\"\" char* \"\\\"\"\n"
    "integer ::= \"-\"? (\"0\" | [1-9] [0-9]{0,17})\n"
    "number ::= integer (\".\" [0-9]{1,17})? ([eE] [-+]? [0-9]{1,2})?\n"
    "boolean ::= \"true\" | \"false\"\n"
    "null ::= \"null\"\n";

static tn_status write_all(schema_writer *w) {
    int rule = 0;
    TRY(write_schema(w, w->root, &rule));
    TRY(put(w->out, "root ::= s%d\n", rule));
    for (int i = 0; i < w->reference_count; i++) {
        TRY(write_schema(w, w->references[i], &rule));
        TRY(put(w->out, "r%d ::= s%d\n", i, rule));
    }
    return tn_bytes_append(w->out, any_json, sizeof any_json - 1);
}

tn_status tn_grammar_from_json_schema(const char *json, size_t size, tn_bytes *out) {
    TN_C_LOCALE;
    tn_json_doc *doc = NULL;
    if (!json || !out) return tn_backend_fail(TN_ERR_ARGUMENT, "JSON schema: an argument is NULL");
    if (tn_json_parse(json, size, &doc) != TN_OK)
        return tn_backend_fail(tn_error_code(), "JSON schema: %s", tn_error());
    schema_writer *w = tn_txt_zalloc(1, sizeof *w);
    size_t before = out->size;
    tn_status status = TN_ERR_MEMORY;
    if (w) {
        w->out = out;
        w->root = tn_json_root(doc);
        status = write_all(w);
    }
    if (status != TN_OK) out->size = before;
    tn_txt_free(w);
    tn_json_free(doc);
    return status;
}
