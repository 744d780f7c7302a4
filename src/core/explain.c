/* explain.c — what a plan does, in words that a person can check. */
#include "core/core.h"

const char *tn_command_kind_name(const tn_command *c) {
    switch (c->kind) {
    case TN_CMD_KERNEL: return "kernel";
    case TN_CMD_NATIVE: return "native";
    default: return "copy";
    }
}

static void put_command(tn_str *out, size_t number, const tn_command *c) {
    tn_str_add(out, "%4zu  %-7s %s", number, tn_command_kind_name(c), c->label);
    if (c->kind == TN_CMD_KERNEL && c->launch_count > 1)
        tn_str_add(out, "  (and %lld like it, one launch)", (long long)(c->launch_count - 1));
    tn_str_add(out, "%s\n", c->commit ? "  [commit]" : "");
}

char *tn_explain_last(void) {
    tn_recorder *r = tn_recorder_here();
    tn_plan_cache *c = r ? tn_plans_of(r) : NULL;
    if (!c || !c->last) return tn_mem_strdup("nothing has been planned on this thread yet\n");
    const tn_plan *p = c->last;
    tn_str out = {0};
    int states = 0;
    for (int i = 0; i < p->output_count; i++)
        states += p->output_home[i] >= 0;
    tn_str_add(&out, "plan on %s: %lld values in %zu commands; %d buffers read, %d results, %d states written\n",
               p->device->info.id, (long long)p->values_planned, p->command_count, p->bound_count,
               p->output_count - states, states);
    tn_str_add(&out, "arena %zu bytes; run %lld times; plans: %lld made, %lld hits, %lld misses, %lld re-sized\n",
               p->arena_bytes, (long long)p->runs, (long long)c->made, (long long)c->hits, (long long)c->misses,
               (long long)c->resized);
    for (size_t i = 0; i < p->command_count; i++)
        put_command(&out, i, &p->commands[i]);
    if (out.failed) {
        tn_str_free(&out);
        return NULL;
    }
    return out.text;
}

void tn_text_free(char *text) { tn_mem_free(text); }
