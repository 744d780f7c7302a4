"""template_cases.py — chat templates, conversations and expressions for tools/text/ref_template.py.

The templates are written for this project after the prompt formats of the families that they are named by, with the
means that the families' own templates use. Templates of real models are compared by tools/checks/templates.sh.
"""

TOOLS = [
    {"type": "function",
     "function": {"name": "get_weather", "description": "The weather in a town, \"now\" & here <b>",
                  "parameters": {"type": "object",
                                 "properties": {"town": {"type": "string", "description": "Où? 東京"},
                                                "days": {"type": "integer", "enum": [1, 3, 7]},
                                                "exact": {"type": "boolean", "default": False},
                                                "limit": {"type": "number", "default": 0.5}},
                                 "required": ["town"]}}},
    {"type": "function",
     "function": {"name": "stop", "description": "Stops.", "parameters": {"type": "object", "properties": {}}}},
]

CALL = {"id": "call_123456", "type": "function",
        "function": {"name": "get_weather", "arguments": {"town": "Köln", "days": 3, "exact": True, "note": None}}}

USER = {"role": "user", "content": "Hi there!"}
SYSTEM = {"role": "system", "content": "  You are terse.\n"}
ANSWER = {"role": "assistant", "content": "Hello 👋\nHow are you?"}
BASE = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "tools": None,
        "documents": None}

CONVERSATIONS = {
    "one question": {**BASE, "messages": [USER], "add_generation_prompt": True},
    "with a system prompt": {**BASE, "messages": [SYSTEM, USER], "add_generation_prompt": True},
    "several turns": {**BASE, "messages": [SYSTEM, USER, ANSWER, {"role": "user", "content": " \tMore, please? \n"}],
                      "add_generation_prompt": True},
    "to its end": {**BASE, "messages": [USER, ANSWER], "add_generation_prompt": False},
    "tools": {**BASE, "messages": [SYSTEM, USER], "tools": TOOLS, "add_generation_prompt": True},
    "tools without a system prompt": {**BASE, "messages": [USER], "tools": TOOLS[1:], "add_generation_prompt": True},
    "a call and its result": {
        **BASE, "tools": TOOLS, "add_generation_prompt": True,
        "messages": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]},
                     {"role": "tool", "name": "get_weather", "tool_call_id": "call_123456",
                      "content": "{\"sun\": true}"},
                     {"role": "tool", "name": "stop", "tool_call_id": "call_654321", "content": "stopped"},
                     ANSWER, USER]},
    "thinking": {**BASE, "enable_thinking": False, "add_generation_prompt": True,
                 "messages": [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."},
                              {"role": "user", "content": "Sure?"}]},
    "parts": {**BASE, "add_generation_prompt": True,
              "messages": [{"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "image"},
                                                        {"type": "text", "text": "this?"}]}]},
    "out of turn": {**BASE, "messages": [USER, USER], "add_generation_prompt": True},
    "an answer first": {**BASE, "messages": [ANSWER, USER], "add_generation_prompt": True},
    "nothing said": {**BASE, "messages": [], "add_generation_prompt": True},
}

TEMPLATES = {
    "chatml": (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
        "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"),
    "smollm": (
        "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe "
        "helpful.<|im_end|>\\n' }}{% endif %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' "
        "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"),
    "llama2": """
{%- if messages and messages[0]['role'] == 'system' -%}
    {%- set rest = messages[1:] %}
    {%- set system = messages[0]['content'] %}
{%- else -%}
    {%- set rest = messages %}
    {%- set system = false %}
{%- endif -%}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles have to take turns: user, assistant, user …') }}
    {%- endif %}
    {%- if loop.index0 == 0 and system is not false %}
        {%- set content = '<<SYS>>\\n' ~ system.strip() ~ '\\n<</SYS>>\\n\\n' ~ message['content'] %}
    {%- else %}
        {%- set content = message['content'] %}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + content.strip() + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}
""",
    "llama3": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{% set date_string = strftime_now("%d %b %Y") %}{% endif %}
{%- endif %}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "These functions can be called:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim
            + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("One call at a time") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral": """
{%- if messages and messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined
        and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the system message, roles must take turns") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length < 9 %}
                {{- raise_exception("Call ids have at least nine letters") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id[-9:] + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user, assistant and tool take part") }}
    {%- endif %}
{%- endfor %}
""",
    "qwen2": """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nFunctions you may call are inside <tools></tools>:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nAnswer with <tool_call>\\n{\\"name\\": <name>, "
        "\\"arguments\\": <arguments>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first)
        or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "qwen3": """
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string
        and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n') %}
                {%- set reasoning_content = reasoning_content.split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n')
                + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    "gemma": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("user and model take turns") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
""",
    "phi": """{% for message in messages %}
{% if message['role'] == 'system' and message['content'] %}
{{ '<|system|>
' + message['content'] + '<|end|>
' }}
{%- elif message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + '<|end|>
' }}
{%- elif message['role'] == 'assistant' %}
{{ '<|assistant|>
' + message['content'] + '<|end|>
' }}
{%- endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}
""",
    "macros": """
{%- macro describe(properties, level=0, required=[]) -%}
    {%- for name, p in properties | dictsort %}
{{ '  ' * level }}- {{ name }}{{ '*' if name in required }}: {{ p.type | default('any') | upper }}
        {%- if p.enum %} one of {{ p.enum | join(' | ') }}{% endif %}
        {%- if p.default is defined %} ({{ p.default | tojson }}){% endif %}
        {%- if p.properties %}{{ describe(p.properties, level + 1, required=p.required or []) }}{% endif %}
    {%- endfor %}
{%- endmacro %}
{%- macro turn(role, text) %}<|{{ role }}|>{{ caller_name | default('') }}{{ text | trim | indent(2) }}{% endmacro -%}
{%- for t in tools or [] %}
## {{ t.function.name | replace('_', ' ') | title }}
{{ describe(t.function.parameters.properties, required=t.function.parameters.required | default([])) }}
{%- else -%}
no tools
{%- endfor %}
{% for m in messages if m.role != 'tool' %}
    {%- if m.content is not string %}{% continue %}{% endif %}
    {%- if loop.index > 3 %}{% break %}{% endif %}
{{ turn(m.role, text=m.content) }}{{ '' if loop.last else ' / ' }}
{%- endfor %}
{% filter upper %}{% with name = messages | map(attribute='role') | unique | list %}{{ name
    | join('+') }}{% endwith %}{% endfilter %}
{%- set tail %}
{% raw %}{{ kept }}{% endraw %} {# gone #}
  {%+ if true +%}
  x
{% endif %}
{% endset %}
[{{ tail }}]
{%- generation %} said{% endgeneration %}
""",
}

# What expressions see.
VALUES = {
    "n": 7, "m": -3, "f": 2.5, "t": True, "no": None, "s": "Hello, World", "u": "Ünï 東京 👋", "empty": "",
    "blank": " \t padded \n", "list": [3, 1, 2], "words": ["b", "A", "c", "a"],
    "mixed": [1, "1", None, 2.5, [1], {"k": 1}],
    "d": {"a": 1, "b": {"c": [10, 20]}, "items": "mine", "x y": 2}, "e": {}, "rows": [
        {"name": "x", "n": 2, "tags": ["p"]}, {"name": "y", "n": 1}, {"name": "X", "n": 2, "tags": []}],
    "lines": "one\ntwo\n\nthree\n", "quote": "it's \"so\" \\ \n",
}

OUTPUTS = [
    "n + m", "n - m", "n * m", "n / 2", "n // 2", "m // 2", "m % 5", "n % -5", "7.5 // 2", "-7.5 % 2", "2 ** 10",
    "2 ** -1", "n + f", "n * f", "-n", "+n", "--n", "-f", "1 + 2 * 3", "(1 + 2) * 3", "2 * 3 ** 2", "-2 ** 2",
    "10 - 4 - 3", "100 // 7 // 2", "1_000", "1.5e3", "1e20", "1e-7", "0.1 + 0.2", "1e16", "123456789012345680.0",
    "1.0", "100.0 * 3", "5 / 2.0", "1 / 3", "3.0 // 2", "2.5 * 2", "n ~ m", "s ~ no ~ t", "s + '!'", "'a' 'b'",
    "s * 2", "2 * 'ab'", "list + [4]", "[0] * 3", "(1, 2) + (3,)", '"x" ~ list', "'' ~ f", "n == 7", "n == 7.0",
    "t == 1", "n != m", "n > m", "1 < 2 < 3", "1 < 3 < 2", "3 > 2 >= 2", "'a' < 'b'", "[1, 2] < [1, 3]", "n == '7'",
    "no == none", "t and n", "no and n", "no or 'x'", "not t", "not no", "not n == 7", "t and not no",
    "n > 5 and m < 0 or f", "'H' in s", "'h' in s", "'x' not in s", "2 in list", "9 not in list", "'a' in d",
    "'zz' in d", "1 in d", "'' in s", "none in mixed", "n if t else m", "n if no else m", "(n if no)",
    "'a' if n > 9 else 'b' if n > 5 else 'c'", "undefined_name", "undefined_name is defined", "s[0]", "s[-1]",
    "s[1:4]", "s[:5]", "s[7:]", "s[::-1]", "s[::2]", "s[-5:-1]", "s[10:2:-3]", "s[99]", "s[5:1]", "u[4]", "u[4:6]",
    "u[-1:]", "u | length", "u[::-1]", "list[0]", "list[-1]", "list[9]", "list[1:]", "list[::-1]", "list[:-1]",
    "list[0:3:2]", "list[-100:100]", "d['a']", "d.a", "d['b']['c'][1]", "d.b.c.0", "d['x y']", "d.none_such",
    "d['items']", "list.0", "d.get('a')", "d.get('q')", "d.get('q', 5)", "d.keys() | list", "d.items() | list",
    "d.values() | list", "s | upper", "s | lower", "u | upper", "u | lower", "'hello wORLD-foo bar_baz' | title",
    "'hELLO wORLD' | capitalize", "'éa' | upper", "blank | trim", "'xxaxx' | trim('x')", "s | length",
    "list | length", "d | length", "empty | length", "s | count", "s | first", "s | last", "list | first",
    "list | last", "empty | first", "s | replace('l', 'L')", "s | replace('l', 'L', 1)", "'aaa' | replace('', '-')",
    "s | reverse", "list | reverse | list", "words | join(', ')", "words | join", "list | join('|')",
    "rows | join(',', attribute='name')", "words | sort", "words | sort(reverse=true)",
    "words | sort(case_sensitive=true)", "list | sort", "rows | sort(attribute='n') | map(attribute='name') | list",
    "words | unique | list", "words | min", "words | max", "list | min", "list | max", "list | sum",
    "rows | sum(attribute='n')", "rows | map(attribute='n') | sum", "rows | map(attribute='name') | list",
    "rows | map(attribute='tags', default='-') | list", "words | map('upper') | list",
    "words | map('replace', 'a', 'z') | join", "list | select('odd') | list", "list | reject('odd') | list",
    "list | select('gt', 1) | list", "list | select('>', 1) | list",
    "rows | selectattr('tags') | map(attribute='name') | list", "rows | rejectattr('tags') | list | length",
    "rows | selectattr('n', 'equalto', 2) | map(attribute='name') | join",
    "rows | rejectattr('n', 'eq', 2) | map(attribute='name') | join", "mixed | select | list | length",
    "mixed | select('string') | list", "rows | selectattr('tags', 'defined') | list | length", "no | default('x')",
    "undefined_name | default('x')", "empty | default('x')", "empty | default('x', true)",
    "no | default('x', boolean=true)", "undefined_name | d", "undefined_name | d('q')", "'42' | int", "'4.9' | int",
    "'x' | int", "'x' | int(5)", "'0x1f' | int(base=16)", "3.99 | int", "-3.99 | int", "'2.5' | float", "'x' | float",
    "3 | float", "t | int", "' 12 ' | int", "no | int", "no | int(1)", "-5 | abs", "-2.5 | abs", "2.5 | round",
    "3.5 | round", "2.567 | round(2)", "2.51 | round(1, 'floor')", "2.01 | round(0, 'ceil')", "7 | round",
    "1234.5678 | round(3)", "list | string", "s | string", "n | string", "f | string", "no | string", "t | string",
    "d | string", "mixed | string", "quote", "list | first", "(1,) | string", "(1, 2) | string", "[quote] | string",
    '["it\'s"] | string', '[\'"\'] | string', "[true, none, 1.0, undefined_name] | string", "s | tojson",
    "d | tojson", "mixed | tojson", "u | tojson", "u | tojson(ensure_ascii=true)", "quote | tojson",
    "d | tojson(indent=2)", "d | tojson(indent=0)", "e | tojson(indent=2)", "[] | tojson(indent=2)",
    "list | tojson(indent=4)", "{'b': 1, 'a': {'z': 1, 'y': 2}} | tojson(sort_keys=true)",
    "d | tojson(separators=(',', ':'))", "[1.0, 1e100, -0.0, true, none] | tojson", '\'<a href="x">&\\\'\' | tojson',
    '"\\u0001\\u007f\\b\\f" | tojson', '\'<a href="x">&\\\'\' | e', "'<b>' | escape", "'<b>' | safe",
    "lines | indent", "lines | indent(2, true)", "lines | indent(2, blank=true)", "lines | indent('> ')",
    "s | wordcount", "d | items | list", "d | dictsort", "d | dictsort(reverse=true)",
    "{'b': 1, 'a': 2} | dictsort(by='value')", "s | list | length", "d | list", "'abc' | list", "s.upper()",
    "s.lower()", "s.title()", '"they\'re bill\'s" | title', '"they\'re bill\'s".title()', "s.capitalize()",
    "blank.strip()", "blank.lstrip()", "blank.rstrip()", "'xxaxx'.strip('x')", "'xyaxy'.lstrip('xy')",
    "'a\\n\\n'.rstrip('\\n')", "s.startswith('He')", "s.endswith('d')", "s.startswith(('x', 'H'))", "s.endswith(())",
    "s.split(',')", "s.split()", "' a  b '.split()", "'a,b,c'.split(',', 1)", "'a b c d'.split(none, 2)",
    "'a,b,c'.rsplit(',', 1)", "'a,,b'.split(',')", "''.split()", "''.split(',')", "lines.splitlines()",
    "lines.splitlines(true)", "'a\\r\\nb\\rc'.splitlines()", "s.replace('o', '0')", "s.replace('o', '0', 1)",
    "', '.join(words)", "'-'.join('abc')", "s.find('o')", "s.rfind('o')", "s.find('z')", "s.index('W')",
    "s.count('l')", "'aaaa'.count('aa')", "u.find('京')", "'abc'.removeprefix('ab')", "'abc'.removesuffix('bc')",
    "'abc'.removeprefix('x')", "'123'.isdigit()", "'12a'.isdigit()", "''.isdigit()", "'abc'.isalpha()",
    "'é'.isalpha()", "'a1'.isalnum()", "' \\t'.isspace()", "'AB1'.isupper()", "'ab1'.islower()", "'1'.isupper()",
    "'Ab'.islower()", "list.index(1)", "list.count(3)", "d.copy() == d", "words.index('c')", "n is defined",
    "zz is defined", "zz is undefined", "no is none", "n is none", "n is number", "t is number", "n is integer",
    "t is integer", "f is float", "n is float", "s is string", "n is string", "d is mapping", "list is mapping",
    "list is sequence", "s is sequence", "n is sequence", "d is sequence", "list is iterable", "n is iterable",
    "zz is iterable", "zz is sequence", "t is boolean", "n is boolean", "t is true", "n is true", "no is false",
    "n is odd", "n is even", "n is divisibleby 7", "n is divisibleby(3)", "'ab' is lower", "'AB' is upper",
    "n is eq 7", "n is equalto(8)", "n is ne 8", "n is gt 3", "n is lt 3", "n is ge 7", "n is le 6", "n is in [1, 7]",
    "'a' is in 'abc'", "n is not defined", "n is not none", "s is not string", "n is sameas 7", "range is callable",
    "n is callable", "n is defined and s is string", "not n is defined", "n == 7 is true", "range(3) | list",
    "range(1, 4) | list", "range(10, 0, -3) | list", "range(0) | list", "range(2) | length", "dict(a=1, b=2)",
    "dict({'a': 1}, b=2)", "namespace(a=1).a", "{'a': 1, 'b': [1, {'c': 2}]}", "{}", "[]", "()", "(1)", "(1,)",
    "[1, 2,]", "{'a': 1,}", "{1: 'x', 'k': none}", "{'a': 1}['a']", "[1, [2, 3]][1][0]", "((1, 2), 3)[0][1]",
    '\'\\n\' == "\\n"', "'\\x41\\u00e9\\101'", '"a\\\'b"', '\'a\\"b\'', "'tab\\tnew'", "'\\q'", '"multi\nline"',
    "raise_exception('no')", "n.foo.bar", "zz.foo", "zz['foo']", "zz()", "n()", "s + 1", "1 + s", "list + 1",
    "list + s", "no + 1", "zz + 1", "-s", "-zz", "1 / 0", "1 % 0", "1 // 0", "1.0 / 0", "'a' < 1", "no < 1", "1 in 5",
    "1 in 'a'", "s.nope()", "s.split('')", "s.index('zz')", "list.append(1)", "d.update({})", "list.index(99)",
    "n | length", "no | length", "n | first", "no | join", "none | list", "5 | list", "{}[[]]", "{[]: 1}",
    "range(1000000) | list", "range()", "s[::0]", "s['a']", "s.0", "list['a']", "'a'.upper(1)", "namespace(1)",
    "dict(1)", "n | tojson(3, 4, 5, 6, 7)", "s | replace('a')", "{'a': zz} | tojson", "range | tojson",
    "s | select('nope') | list", "words | map('nope') | list", "strftime_now()", "loop",
]

STATEMENTS = [
    "{% for i in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop."
    "first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for i in list %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }};{% endfor %}",
    "{% for i in list %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }}{{ loop.depth }}{% for j in '"
    "ab' %}{{ loop.depth0 }}{% endfor %}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }};{% endfor %}",
    "{% for (a, b) in [(1, 2), (3, 4)] %}{{ a + b }};{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{% for a, b in [[1]] %}{{ a }}{% endfor %}", "{% for c in u %}{{ c }}.{% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}", "{% for i in zz %}x{% else %}none{% endfor %}",
    "{% for i in n %}{% endfor %}", "{% for i in no %}{% endfor %}",
    "{% for i in list if i > 1 %}{{ i }}/{{ loop.length }} {% endfor %}",
    "{% for i in list if i > 5 %}{{ i }}{% else %}no{% endfor %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% elif i == 5 %}{% break %}{% endif %}{{ i }}"
    "{% endfor %}!",
    "{% for i in range(3) %}{% for j in range(3) %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {"
    "% endfor %}{% endfor %}",
    "{% set x = 1 %}{% for i in list %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}",
    "{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}", "{% if zz %}a{% elif n %}b{% else %}c{% endif %}",
    "{% set ns = namespace(x=1) %}{% for i in list %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% set ns.x = 1 %}", "{% set d.x = 1 %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1] %}",
    "{% set x = 1, %}{{ x }}", "{% set x %}a{{ n }}b{% endset %}{{ x }}{{ x | length }}",
    "{% set x | upper | trim %} abc {% endset %}[{{ x }}]",
    "{% filter upper | replace('A', 'b') %}a{{ s }}{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
    "{% with n = 1, k = n %}{{ n }}{{ k }}{% endwith %}",
    "{% macro f(a, b=2, c=a) %}{{ a }},{{ b }},{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f(b=5) "
    "}}{{ f() }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(z=2) }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro f() %}{{ later }}{{ s }}{% endmacro %}{% set later = 'L' %}{{ f() }}",
    "{% macro f() %}{% set x = 1 %}{{ x }}{% endmacro %}{{ f() }}{{ x }}", "{{ f() }}{% macro f() %}x{% endmacro %}",
    "{% macro f(x) %} {{ x }} {% endmacro %}[{{ f('a') | trim }}]{{ f('b') + 'c' }}",
    "{% macro f() %}{% endmacro %}{{ f is callable }}{{ f() | length }}",
    "{% macro f(a, b=0) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1, 2]) }}{{ f(**{'b': 3, 'a': 4}) }}{{ f(*'"
    "xy') }}{{ f(5, **{'b': 6}) }}{{ namespace(**d).a }}{{ dict(z=2, **{'k': 1}) }}",
    "{{ dict(**list) }}", "{{ range(*[1, 2, 3, 4]) }}", "{{ dict(**{1: 2}) }}", "{{ range(**{'start': 1}, 2) }}",
    "{% raw %}{{ x }}{% if %}{% endraw %}", "{%- raw -%}  a  {%- endraw -%}  b", "a {% raw %} b {% endraw %} c",
    "a{# b #}c", "a\n{# b #}\nc", "a\n  {#- b -#}  \nc", "{# {{ x }} {% if %} #}",
    "  {% if t %}\n  x\n  {% endif %}\ny\n", "\n{% if t %}\n\nx{% endif %}\n\n",
    "a  {%- if t -%}  x  {%- endif -%}  b", "a  {{- n -}}  b", "a\n\n{{- n -}}\n\nb", "  {{ n }}\n  {{ n }}\n",
    "x {% if t %} y {% endif %} z", "  {%+ if t %}x{% endif +%}\ny", "  {% if t %}x{% endif %}  \n  z",
    "{% if t %}\n{% endif %}\n", "\n", "a\n", "a\n\n", "\r\na\r\nb\rc\r\n", "", "{{ 'a' }}\n{{ 'b' }}",
    "{% for i in list %}\n    {{ i }}\n{% endfor %}\n", "{% for i in list -%}\n    {{ i }}\n{%- endfor %}\n",
    "\t{% set x = 1 %}\t\n\tz", "a {# c #}\n{# d #}\nb", '{{ \'{{\' }}{{ \'%}\' }}{{ "}}" }}',
    "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}.a.b}}", "{{ s|upper|lower }}", "{{n}}{{-n}}", "{{ 1,2 }}",
    "{{ - 1 }}", "{{ n is defined }}{{ n is not defined }}", "a { b } c {a} {%if t%}x{%endif%}",
    "{% if n == 7 and (s or zz) -%}\n x {%- endif %}", "{% generation %}a{{ n }}{% endgeneration %}",
    "{{ strftime_now('%Y-%m-%d %H:%M:%S') }}", "{{ strftime_now('%d %B %Y, %A') }}",
    # What is wrong in itself.
    "{{", "{{ n", "{% if n %}", "{% if %}{% endif %}", "{% endif %}", "{% for %}{% endfor %}", "{% for i in list %}",
    "{{ n | nope }}", "{{ n is nope }}", "{% nope %}", "{{ n + }}", "{{ (n }}", "{{ n) }}", "{{ [1, 2 }}", "{{ 'a }}",
    "{{ n n }}", "{{ }}", "{% set %}", "{% set x %}", "{% macro f(a=1, b) %}{% endmacro %}", "{% break %}", "{# x",
    "{% raw %}x", "{{ f(a=1, 2) }}", "{{ n ? 1 : 2 }}", "{{ 1 . }}", "{% if n }}x{% endif %}", "{{ n %}",
    "{% else %}", "{{ a.b. }}", "{{ 'a' | }}", "{{ n is }}", "{{ @ }}",
    "{% for i in list %}{% else %}{% else %}{% endfor %}",
]

EXPRESSIONS = ["{{ " + output + " }}" for output in OUTPUTS] + STATEMENTS
