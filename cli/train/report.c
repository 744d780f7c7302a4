/* report.c — the page of --report: everything is in it, charts as SVG that the page's script draws from its numbers.
 *
 * The page is written again while the run goes on; a browser that shows it loads it again every few seconds. At most
 * MOST_POINTS are written: every n-th of a longer run, and the last. */
#include "cli/train/report.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "trunnion/backend.h"

enum { MOST_POINTS = 2000, BETWEEN_SECONDS = 2 };

static const char head[] = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n"
                           "<meta name=\"viewport\" content=\"width=device-width\">\n";

static const char style[] =
    "<style>\n"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 "
    "1em;color:#222;background:#fff}\n"
    "h1{font-size:1.4em}h2{font-size:1.05em;margin:0 0 .3em}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(320px,1fr));gap:1em}\n"
    "figure{margin:0;border:1px solid #ddd;border-radius:6px;padding:.7em}svg{width:100%;height:auto;display:block}\n"
    "td{padding:.1em 1em .1em 0;vertical-align:top}td:first-child{color:#666}\n"
    "pre{white-space:pre-wrap;background:#f6f6f6;padding:.7em;border-radius:6px}\n"
    "text{font:11px system-ui,sans-serif;fill:#666}.key{font-size:.85em;color:#666}\n"
    "@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}figure{border-color:#444}pre{background:#222}"
    "}\n"
    "</style>\n";

/* A chart: a title, and the columns of the data that it shows. */
static const char script[] =
    "<script>\n"
    "const colours=['#2563eb','#dc2626'];\n"
    "function short(v){const a=Math.abs(v);return v===0?'0':a>=1e9?(v/1e9).toPrecision(3)+'G':a>=1e6?"
    "(v/1e6).toPrecision(3)+'M':a>=1e4?(v/"
    "1e3).toPrecision(3)+'k':a<1e-3?v.toExponential(1):''+Number(v.toPrecision(4))}\n"
    "function chart(title,names,columns){\n"
    " const W=440,H=210,L=52,R=8,T=8,B=24,x0=run.points[0][0],x1=Math.max(run.points[run.points.length-1][0],x0+1);\n"
    " let lo=Infinity,hi=-Infinity,out='',any=false;\n"
    " for(const p of run.points)for(const c of "
    "columns)if(p[c]!==null){lo=Math.min(lo,p[c]);hi=Math.max(hi,p[c]);any=true}\n"
    " if(!any)return;\n"
    " if(hi===lo){hi+=Math.abs(hi)*.1||1;lo-=Math.abs(lo)*.1||1}\n"
    " const X=s=>L+(s-x0)/(x1-x0)*(W-L-R),Y=v=>T+(hi-v)/(hi-lo)*(H-T-B);\n"
    " for(let i=0;i<=4;i++){const v=lo+(hi-lo)*i/4;out+=`<line x1=\"${L}\" x2=\"${W-R}\" y1=\"${Y(v)}\" y2=\"${Y(v)}\" "
    "stroke=\"#8883\"/><text x=\"${L-5}\" y=\"${Y(v)+4}\" text-anchor=\"end\">${short(v)}</text>`}\n"
    " out+=`<text x=\"${L}\" y=\"${H-6}\">${x0}</text><text x=\"${W-R}\" y=\"${H-6}\" text-anchor=\"end\">step "
    "${x1}</text>`;\n"
    " columns.forEach((c,k)=>{const at=run.points.filter(p=>p[c]!==null).map(p=>[X(p[0]),Y(p[c])]);\n"
    "  if(at.length)out+=`<polyline fill=\"none\" stroke=\"${colours[k]}\" stroke-width=\"1.6\" points=\"${at.map(p=>"
    "p[0].toFixed(1)+','+p[1].toFixed(1)).join(' ')}\"/>`;\n"
    "  if(k||at.length<40)for(const p of at)out+=`<circle cx=\"${p[0].toFixed(1)}\" cy=\"${p[1].toFixed(1)}\" "
    "r=\"2.5\" "
    "fill=\"${colours[k]}\"/>`});\n"
    " const f=document.createElement('figure');\n"
    " f.innerHTML=`<h2>${title}</h2><svg viewBox=\"0 0 ${W} ${H}\" role=\"img\">${out}</svg><div class=\"key\">`+"
    "names.map((n,k)=>`<span style=\"color:${colours[k]}\">&#9632;</span> ${n} `).join('')+'</div>';\n"
    " document.querySelector('.charts').append(f)}\n"
    "if(run.points.length){chart('Loss',['training','validation'],[1,2]);chart('Learning rate',['learning "
    "rate'],[3]);\n"
    " chart('Gradient norm',['before clipping'],[4]);chart('Speed',[run.speed],[5]);chart('Memory',['peak, "
    "bytes'],[6])}\n"
    "</script>\n";

/* ---- what is known ----------------------------------------------------------------------------------------------- */

void report_fact(report *r, const char *name, const char *format, ...) {
    int i = 0;
    while (i < r->fact_count && strcmp(r->facts[i].name, name) != 0)
        i++;
    if (!r->path || i == REPORT_FACTS) return;
    if (i == r->fact_count) r->fact_count++;
    snprintf(r->facts[i].name, sizeof r->facts[i].name, "%s", name);
    va_list args;
    va_start(args, format);
    vsnprintf(r->facts[i].value, sizeof r->facts[i].value, format, args);
    va_end(args);
}

tn_status report_open_events(report *r, const char *folder, int64_t first, bool resumed) {
    return folder ? events_open(&r->events, folder, resumed ? first + 1 : 0) : TN_OK;
}

static tn_status add_events(report *r, const report_point *p) {
    const event_scalar scalars[] = {{"loss/training", p->loss},
                                    {"loss/validation", p->validation},
                                    {"learning_rate", p->rate},
                                    {"gradient_norm", p->norm},
                                    {r->speed_unit, p->speed},
                                    {"memory/peak_bytes", p->memory},
                                    r->shown};
    int count = sizeof scalars / sizeof scalars[0];
    return events_scalars(&r->events, p->step, scalars, r->shown.tag ? count : count - 1);
}

tn_status report_add(report *r, const report_point *p) {
    tn_status status = add_events(r, p);
    if (!r->path || status != TN_OK) return status;
    if (r->count == r->room) {
        int64_t room = r->room ? 2 * r->room : 1024;
        report_point *more = realloc(r->points, (size_t)room * sizeof *more);
        if (!more) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
        r->points = more;
        r->room = room;
    }
    r->points[r->count++] = *p;
    return cli_now() - r->written >= BETWEEN_SECONDS ? report_write(r, false) : TN_OK;
}

tn_status report_sample(report *r, int64_t step, const char *text) {
    tn_status status = events_text(&r->events, step, "sample", text);
    if (!r->path || status != TN_OK) return status;
    char *copy = strdup(text);
    if (!copy) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    if (r->sample_count == REPORT_SAMPLES) free(r->samples[--r->sample_count].text);
    r->samples[r->sample_count].step = step;
    r->samples[r->sample_count++].text = copy;
    return TN_OK;
}

void report_free(report *r) {
    events_close(&r->events);
    for (int i = 0; i < r->sample_count; i++)
        free(r->samples[i].text);
    free(r->points);
    r->points = NULL;
    r->sample_count = 0;
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

/* Text of files and models must not become part of the page. */
static void put_escaped(FILE *to, const char *text) {
    for (const char *s = text; *s; s++) {
        const char *as = *s == '<' ? "&lt;" : *s == '>' ? "&gt;" : *s == '&' ? "&amp;" : *s == '"' ? "&quot;" : NULL;
        if (as)
            fputs(as, to);
        else
            fputc(*s, to);
    }
}

static void put_number(FILE *to, double v) {
    if (isfinite(v))
        fprintf(to, ",%.6g", v);
    else
        fputs(",null", to);
}

static void put_points(const report *r, FILE *to) {
    int64_t stride = (r->count + MOST_POINTS - 1) / MOST_POINTS;
    bool any = false;
    for (int64_t i = 0; i < r->count; i++) {
        const report_point *p = &r->points[i];
        if (i % (stride ? stride : 1) != 0 && i != r->count - 1 && !isfinite(p->validation)) continue;
        fprintf(to, "%s[%lld", any ? ",\n" : "", (long long)p->step);
        const double values[] = {p->loss, p->validation, p->rate, p->norm, p->speed, p->memory};
        for (size_t k = 0; k < sizeof values / sizeof *values; k++)
            put_number(to, values[k]);
        fputc(']', to);
        any = true;
    }
}

static void put_page(const report *r, bool done, FILE *to) {
    fputs(head, to);
    if (!done) fputs("<meta http-equiv=\"refresh\" content=\"5\">\n", to);
    fputs("<title>", to);
    put_escaped(to, r->title);
    fprintf(to, "</title>\n%s<h1>", style);
    put_escaped(to, r->title);
    const char *state = r->failed ? "failed" : done ? "finished" : "running";
    fprintf(to, " <small>%s</small></h1>\n<table>\n", state);
    for (int i = 0; i < r->fact_count; i++) {
        fputs("<tr><td>", to);
        put_escaped(to, r->facts[i].name);
        fputs("<td>", to);
        put_escaped(to, r->facts[i].value);
        fputs("\n", to);
    }
    fputs("</table>\n<div class=\"charts\"></div>\n", to);
    for (int i = 0; i < r->sample_count; i++) {
        fprintf(to, "<h2>Sample after step %lld</h2>\n<pre>", (long long)r->samples[i].step);
        put_escaped(to, r->samples[i].text);
        fputs("</pre>\n", to);
    }
    fprintf(to, "<script>\nconst run={speed:\"%s\",points:[\n", r->speed_unit);
    put_points(r, to);
    fprintf(to, "]};\n</script>\n%s</html>\n", script);
}

tn_status report_write(report *r, bool done) {
    cli_output out;
    if (!r->path) return TN_OK;
    TRY(cli_output_begin(&out, r->path));
    put_page(r, done, out.file);
    r->written = cli_now();
    return cli_output_commit(&out);
}

void report_failure(report *r, const char *why) {
    r->failed = true;
    if (why) report_fact(r, "result", "%s", why);
    (void)report_write(r, true);
}
