"""Chat templates in the manner of published ChatML models, written for these tests. Knows no test."""

CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n\\nSignatures stand between <tools></tools>:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nCall inside <tool_call></tool_call>.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == 'user' and message.content is string
          and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or reasoning) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and content) or not loop.first %}{{- '\\n' }}{%- endif %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '<tool_call>\\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

# Everything a template may do with a user's string that has to do with what stands in it.
STRING_WORK = """\
{%- set end = '</think>' %}
{%- for message in messages %}
{%- set c = message.content %}
<|im_start|>{{ message.role }}
{% if end in c %}[in]{% endif %}{% if c == '<think>' %}[eq]{% endif %}{% if c != '<b' %}[ne]{% endif %}
{% if c in ['<think>', 'x'] %}[one of]{% endif %}{% if c is in ['<b>', '</think>'] %}[test]{% endif %}
{% if c.startswith('<') %}[starts]{% endif %}{% if c.endswith(('>', '</think>')) %}[ends]{% endif %}
{{ c | trim }}|{{ c | replace('<think>', '<|im_end|>') }}|{{ c.replace('<', '&lt;', 1) }}|{{ c | upper }}
{{ c.split('</think>')[-1].lstrip('\\n') }}|{{ c.split('</think>', 1) | join('+') }}|{{ c.rpartition('<b')[2] }}
{{ c.find('think') }}|{{ c.count('<') }}|{{ c | length }}|{{ c[:7] }}|{{ c[2:] }}|{{ c[-1:] }}|{{ c[0] }}|{{ c[::-1] }}
{{ c[1] }}|{{ c | replace('th', 'T') }}|{{ c.removeprefix('thi') }}|{{ c.split('th') | join('+') }}
{{ c.strip('<>') }}|{{ c.removeprefix('<think>') }}|{{ {'k<': c} | tojson }}|{{ [c] | tojson(ensure_ascii=True) }}
{{ '%s' % c }}|{{ '{}!'.format(c) }}|{{ c ~ end }}
{{ messages | selectattr('content', 'equalto', '<think>') | list | length }}
<|im_end|>
{%- endfor %}
"""
