/* explain.c — what a plan does, in words. */
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"

/* ---- who computed what ------------------------------------------------------------------------------------------- */

static const tn_plan *last_plan(void) {
    tn_recorder *r = tn_recorder_here();
    tn_plan_cache *c = r ? tn_plans_of(r) : NULL;
    return c ? c->last : NULL;
}

static int64_t bytes_of(const tn_plan *p, tn_command_kind kind) {
    int64_t bytes = 0;
    for (size_t i = 0; i < p->command_count; i++)
        if (p->commands[i].kind == kind) bytes += (int64_t)p->commands[i].bytes;
    return bytes;
}

tn_status tn_get_placement(tn_placement *out) {
    const tn_plan *p = last_plan();
    tn_placement full = {.struct_size = sizeof full};
    if (p) {
        snprintf(full.device, sizeof full.device, "%s", p->device->info.id);
        full.on_device = p->placement.operations - (int64_t)p->placement.placed_count;
        full.on_host = (int64_t)p->placement.placed_count;
        full.to_host = bytes_of(p, TN_CMD_FETCH);
        full.from_host = bytes_of(p, TN_CMD_SEND);
    }
    return tn_result_write(out, &full, sizeof full, "tn_get_placement: out");
}

tn_status tn_get_placed(int64_t i, tn_placed_operation *out) {
    const tn_plan *p = last_plan();
    int64_t count = p ? (int64_t)p->placement.placed_count : 0;
    if (i < 0 || i >= count)
        return tn_fail(TN_ERR_ARGUMENT, "tn_get_placed: index %lld is out of range; %lld operations run on the host",
                       (long long)i, (long long)count);
    const tn_placed *at = &p->placement.placed[i];
    tn_placed_operation full = {.struct_size = sizeof full};
    snprintf(full.op, sizeof full.op, "%s", at->op);
    snprintf(full.where, sizeof full.where, "%s", at->where);
    snprintf(full.code, sizeof full.code, "%s", at->code);
    snprintf(full.reason, sizeof full.reason, "%s", at->reason);
    return tn_result_write(out, &full, sizeof full, "tn_get_placed: out");
}

/* ---- in words ---------------------------------------------------------------------------------------------------- */

static void put_command(tn_str *out, size_t number, const tn_command *c) {
    tn_str_add(out, "%4zu  %-7s %s", number, tn_command_kind_name(c), c->label);
    if (c->kind == TN_CMD_KERNEL && c->launch_count > 1)
        tn_str_add(out, "  (and %lld more like it in one launch)", (long long)(c->launch_count - 1));
    if (c->row_fused) tn_str_add(out, "  (row-fused: each thread runs all of them on its own rows)");
    tn_str_add(out, "%s\n", c->commit ? "  [commit]" : "");
}

/* What comes with each run, and the lines of which this was learned. */
static void put_varying(tn_str *out, const tn_recorder *r, const tn_plan *p) {
    if (p->varying_numbers + p->shift_count == 0) return;
    tn_str_add(out, "runtime scalars: %zu numbers and %zu offsets are set at each run, because they varied:",
               p->varying_numbers, p->shift_count);
    const char *before = " ";
    for (size_t i = 0; i < r->site_count; i++) {
        const tn_site *s = &r->sites[i];
        if (!s->varies) continue;
        tn_str_add(out, "%s%s:%d %s", before, s->file ? s->file : "?", s->line, tn_op(s->op)->name);
        before = ", ";
    }
    tn_str_add(out, "\n");
}

char *tn_explain_last(void) {
    tn_recorder *r = tn_recorder_here();
    tn_plan_cache *c = r ? tn_plans_of(r) : NULL;
    if (!c || !c->last) return tn_mem_strdup("no plan has been made on this thread yet\n");
    const tn_plan *p = c->last;
    tn_plan_await(c->last);
    tn_str out = {0};
    int states = 0;
    for (int i = 0; i < p->output_count; i++)
        states += p->output_home[i] >= 0;
    tn_str_add(&out,
               "plan on %s: %lld values in %zu commands; reads %d buffers, computes %d results, updates %d states\n",
               p->device->info.id, (long long)p->report.values_planned, p->command_count, p->bound_count,
               p->output_count - states, states);
    tn_str_add(&out, "arena %zu bytes; %lld runs; plans: %lld made, %lld hits, %lld misses, %lld resized\n",
               p->arena_bytes, (long long)p->runs.count, (long long)c->made, (long long)c->hits, (long long)c->misses,
               (long long)c->resized);
    put_varying(&out, r, p);
    for (size_t i = 0; i < p->placement.placed_count; i++)
        tn_str_add(&out, "host: %s: %s %s\n", p->placement.placed[i].where, p->device->info.id,
                   p->placement.placed[i].reason);
    for (size_t i = 0; i < p->command_count; i++)
        put_command(&out, i, &p->commands[i]);
    if (out.failed) {
        tn_str_free(&out);
        return NULL;
    }
    return out.text;
}

void tn_text_free(char *text) { tn_mem_free(text); }
