#!/usr/bin/env python3
"""Makes templates.json: renderings of our own templates by Jinja2 in the environment that transformers sets up.

Run it with transformers and jinja2 installed: python3 make_templates.py > templates.json
Every case holds a template, its variables, and either the text or "error": true (the reference raises).
"""
import json
import random
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template

TOOLS = [{"type": "function", "function": {"name": "rain", "description": "Will it <rain> & \"pour\"?\nSay so: \u00e9",
          "parameters": {"type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer",
          "enum": [1, 2]}, "rate": {"type": "number", "default": 1.5}}, "required": ["town"]}}},
         {"type": "function", "function": {"name": "nothing", "parameters": {"type": "object", "properties": {}}}}]
CONVERSATIONS = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be terse."}, {"role": "user", "content": " It's \"quoted\"\n{{ x }} <|end|> "},
     {"role": "assistant", "content": "\u65e5\u672c \U0001f389\n"}, {"role": "user", "content": "more"}],
    [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nanswer"},
     {"role": "user", "content": "next"}],
    [{"role": "user", "content": "rain?"}, {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": "rain", "arguments": {"town": "Z\u00fcrich", "days": 2}}}]},
     {"role": "tool", "name": "rain", "content": "{\"wet\": true}"}, {"role": "assistant", "content": "yes"}],
    [{"role": "user", "content": [{"type": "text", "text": " one "}, {"type": "image"}]}],
    [{"role": "assistant", "content": "I begin"}],
    [],
]
# Our own; each one uses constructs that the templates of a family of models use.
CHATS = {
    "turns": """{% for m in messages %}
    {%- if loop.first and m.role != 'system' %}
        {{- '[sys]default[/sys]\\n' }}
    {%- endif %}
    {{- '[' ~ m['role'] ~ ']' + (m.content | string) + '[/' + m.role + ']' }}
    {%- if not loop.last %}{{ '\\n' }}{% endif %}
{%- else -%}
empty
{%- endfor %}
{% if add_generation_prompt %}
[assistant]
{%- endif %}""",
    "tools": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "1 Jan" %}
{%- endif %}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "Date: " + date_string + "\\n" + system }}
{%- if tools is not none and tools is defined %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n" ~ t.function | tojson }}
    {%- endfor %}
{%- endif %}
{%- for m in messages %}
    {%- if m.tool_calls is defined and m.tool_calls %}
        {%- if not m.tool_calls | length == 1 %}{{ raise_exception("one call only") }}{% endif %}
        {%- set call = m.tool_calls[0].function %}
        {{- call.name + "(" }}
        {%- for k, v in call.arguments | items %}
            {{- k + '="' ~ v ~ '"' }}{% if not loop.last %}, {% endif %}
        {%- endfor %}
        {{- ")" }}
    {%- elif m.role in ["tool", "ipython"] %}
        {{- m.content | tojson if m.content is mapping or m.content is iterable and m.content is not string else m.content }}
    {%- else %}
        {%- generation %}{{- m.content }}{%- endgeneration %}
    {%- endif %}
{%- endfor %}""",
    "thinking": """{%- set ns = namespace(last=messages|length - 1, found=false) %}
{%- for m in messages[::-1] %}
    {%- set index = messages|length - 1 - loop.index0 %}
    {%- if not ns.found and m.role == 'user' and not (m.content is string and m.content.startswith('<r>')) %}
        {%- set ns.found = true %}{% set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'assistant' and '</think>' in m.content %}
        {%- set thought = m.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set rest = m.content.split('</think>')[-1].lstrip('\\n') %}
        {{- loop.index0 > ns.last and thought or '(cut)' }}|{{ rest }}
    {%- else %}
        {{- m.content if m.content is string else m.content | length }}
    {%- endif %}
    {{- '/' ~ loop.revindex ~ (loop.nextitem.role if loop.nextitem is defined else '-') }}
{%- endfor %}
{%- if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}""",
    "parts": """{# alternate roles, macros, parts #}
{%- macro show(content, mark='*', sep="; ") -%}
    {%- if content is string -%}
        {{ mark ~ content | trim }}
    {%- elif content is iterable -%}
        {%- for part in content if part.type != 'video' -%}
            {{ mark }}{{ part.text | trim if part.type == 'text' else '<' + part['type'] + '>' }}
            {%- if not loop.last %}{{ sep }}{% endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- for m in messages -%}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) and m.role != 'system' -%}
        {{ raise_exception("roles must alternate, not " + m.role) }}
    {%- endif -%}
    {%- set role = {'assistant': 'model'}.get(m.role, m.role) -%}
    <{{ role }}>{{ show(m.content, sep=', ') }}</{{ role }}>
{% endfor -%}
{%- filter upper %}end {{ messages | map(attribute='role') | join('+') }}{% endfilter %}""",
    "blocks": """{% set users = messages | selectattr('role', 'equalto', 'user') | list %}
{% set text %}
  {{ users | length }} of {{ messages | length }}
{% endset %}
{% raw %}
{{ not a variable }}
{% endraw %}
  {% for m in messages %}
    {% if m.role == 'system' %}{% continue %}{% endif %}
    {% if loop.index > 3 %}{% break %}{% endif %}
  {{ loop.index }}: {{ m.role | capitalize }}
  {% endfor %}
{{ text | trim }}{{ messages | rejectattr('role', 'in', ['user', 'tool']) | map(attribute='role') | list }}
  {%+ if true %} kept {% endif +%}
end
""",
}

VALUES = {"i": 7, "n": -3, "z": 0, "f": 2.5, "big": 1e20, "s": "Hello World", "u": " \u00e4\u65e5\U0001f389 ", "e": "", "t": True,
          "no": None, "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "d": {"k": 1, "a": {"x": [1, None, "q'"]}, "items2": 2},
          "o": [{"n": "x", "v": 2}, {"n": "Y", "v": 1}, {"n": "a"}], "q": "it's \"q\"\n\t\\"}

FIXED = """
2 ** 3 ** 2;-2 ** 2;-7 // 2;-7 % 3;7 % -3;7.5 // 2;-7.5 % 2;1 / 3;10 / 5;2 ** -1;1e16;1e15;1.0;0.1 + 0.2;1e-5;0.0001;big
1 < 2 < 3;1 < 3 < 2;1 == 1.0;true == 1;'a' < 'b';[1, 2] < [1, 3];1 in l;'H' in s;'k' in d;not 1 in l;5 not in l;no is none
no is not none;zzz is defined;zzz;zzz.a;zzz is undefined;d.k;d['k'];d.missing;d.missing.x;d.a.x[2];l[-1];l[9];l['x'];s[0];s[-1];u[1]
s[1:4];s[::-1];s[::2];u[::-1];l[::-1];l[1:];l[:-1];l[5:];s[-3:];s[3:1];(1, 2)[0];(1,);(1, 2);();[];{};{'a': 1, 2: [none]}
s.upper();s.lower();s.title();s.split();s.split('o');s.split('o', 1);s.rsplit('o', 1);'a,b,,c'.split(',');u.strip();s.strip('Hd')
s.lstrip('He');s.rstrip('dl');s.startswith('He');s.endswith(('d', 'x'));s.find('o');s.rfind('o');s.find('zz');s.replace('l', 'L')
s.replace('l', 'L', 1);s.replace('', '-');s.count('l');', '.join(ls);s.capitalize();'ab cd'.title();'12'.isdigit();''.isdigit()
'a\\tb\\u00e9\\x41\\n' ~ 1;'a' 'b';"it's" ~ 'x';q;[q];d;[1.5, true, none, 'x'];o;'%s-%d-%05.2f' % ('a', 3, 2.5);'%s' % s;'%(k)s' % d;'%5s|%-5s|' % ('a', 'b')
s * 2;2 * s;l * 2;l + [1];(1,) + (2,);l + (1,);'a' + 1;1 + none;i + t;s ~ i ~ f ~ no ~ t ~ zzz;-i;+i;-s;not s;not e
i if t else n;i if e;(i if e) is defined;t and i;e or 'x';e and zzz.y;none or 0;i is odd;i is even;i is divisibleby 7;i is divisibleby(2)
s is string;d is mapping;l is iterable;l is sequence;i is number;i is integer;t is integer;f is float;t is boolean;t is true;e is false;no is none
s is eq 'x';i is gt 3;i is in l;l is in [l];i is sameas 7;s is upper;'AB' is upper;range is callable;zzz is iterable;d is sequence;d.items() is sequence
l | sort;ls | sort;ls | sort(case_sensitive=true);ls | sort(reverse=true);o | sort(attribute='n') | map(attribute='n') | list;l | first;l | last;[] | first
l | length;s | length;u | length;d | length;i | length;l | join(', ');o | join('-', attribute='n');l | reverse | list;s | reverse;l | sum;o | map(attribute='v', default=0) | sum
l | max;l | min;ls | min;l | map('string') | join;l | select('odd') | list;l | reject('odd') | list;ls | select('equalto', 'A') | list;o | selectattr('v') | list
o | selectattr('v', 'defined') | map(attribute='n') | join;o | rejectattr('v', 'defined') | list;[1, 1, 2, 'a', 'A'] | unique | list;d | items | list;d | dictsort;d | dictsort(by='value')
'1' | int;'x' | int;'x' | int(5);'0x1f' | int(base=16);'3.7' | int;3.9 | int;'2.5' | float;'x' | float(1.5);i | float;-5 | abs;i | string;2.5 | round;3.5 | round;2.567 | round(2);2.51 | round(1, 'floor');42 | round;1234 | round(-2)
s | tojson;q | tojson;d | tojson;d | tojson(indent=2);l | tojson(indent=1);[] | tojson(indent=2);u | tojson;u | tojson(ensure_ascii=true);'<a>&' | tojson;d | tojson(sort_keys=true);(1, 2) | tojson;{1: 2, none: 3, true: 4} | tojson;zzz | tojson;d | tojson(separators=(',', ':'));1e20 | tojson;1.0 | tojson
e | default('x');e | default('x', true);zzz | default('x');zzz | d;zzz | default;no | default('x');s | trim;u | trim;'xxaxx' | trim('x');'a\\nb\\n\\nc' | indent;'a\\nb' | indent(2, true);'a\\n\\nb' | indent(2, blank=true);'a\\nb' | indent('> ')
'hello big-world (x)' | title;s | replace('o', '0');s | upper | lower | capitalize;'%s %s' | format('a', 1);s | list;d | list;range(3) | list;range(1, 7, 2) | list;range(3, 0, -1) | list;range(3);dict(a=1, b='x');dict({'q': 1}, z=2)
d.get('k');d.get('zz');d.get('zz', 4);d.keys() | list;d.values() | list;d.items() | list;d.items();d.keys();l.index(1);l.count(9);l.append(4);d.update({});s.__class__;s.zz;s.zz();zzz();i();l.zz is defined
[1, 2, 3][1] + {'a': 5}['a'];(1, 2) == (1, 2);[1, 2] == [1, 2];{'a': 1} == {'a': 1.0};[] == ();'a' in ['a'];'' in 'a';none in [none];1 in 'a';1 < 'a';[1] < 1;none < 1;i // 0;i % 0;1 / 0;'a' | unknownless
'abc' | first;'abc' | last;'' | first is defined;'\u00df' | upper;'\u039f\u03a3' | lower;'a b'.split(' ') | map('upper') | list;(l | map('string')) is string;ls | map('lower') | unique | list;loop;i.x;no.x;no.x.y;1_000;0x1F;0b11;1.5e3;'a' is not string
l.0;d.a.x.1;-5 | abs + 1;(-5) | abs;'a' ~ 'b' * 2;1 + 2 ~ 3;1 ~ 2 + 3;not true == false;1 if 0 else 2 if 0 else 3;true and false or true;i == 7 and s != 'x';'b' > 'a' and 3 >= 3;[x, 1][1];strftime_now is callable;''.join([]);'x'.join(s);'-'.join(['a', 1])
'a-b_c'.partition('-');'abc'.removeprefix('a');'abc'.removesuffix('c');'7'.zfill(3);'a'.ljust(3) ~ '|';'a'.center(4) ~ '|';'a\\nb\\r\\nc'.splitlines();'aXb'.swapcase();'abc'.index('c');'abc'.index('z');'ab'.isalpha();'A1'.isalnum();' '.isspace()
"""

STATEMENTS = [
    "{% for a in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }};{% endfor %}",
    "{% for a in l %}{{ loop.previtem }}<{{ a }}<{{ loop.nextitem }},{% endfor %}",
    "{% for a in [] %}x{% else %}none{% endfor %}{% for a in zzz %}x{% else %}undef{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }},{% endfor %}", "{% for (k, v) in d.items() %}{{ k }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}", "{% for a, b in [1] %}{% endfor %}",
    "{% for a in l if a > 1 %}{{ loop.index }}/{{ loop.length }}:{{ a }} {% endfor %}", "{% for c in u %}[{{ c }}]{% endfor %}",
    "{% for a in 1, 2 %}{{ a }}{% endfor %}", "{% for a in i %}{% endfor %}", "{% for a in d %}{{ a }}{% endfor %}",
    "{% for a in l %}{% for b in ls %}{{ loop.depth }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% set x = 1 %}{% for a in l %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(x=1) %}{% for a in l %}{% set ns.x = ns.x + a %}{% endfor %}{{ ns.x }}{{ ns.y is defined }}",
    "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a + ns.b }}{{ ns['a'] }}", "{% set ns = namespace() %}{% set ns._x = 1 %}", "{% set d.k = 2 %}",
    "{% set a, b = 1, 2 %}{{ b }}{{ a }}", "{% set a = 1, 2 %}{{ a }}", "{% set a %} x {{ i }} {% endset %}[{{ a }}]",
    "{% set a | upper | trim %} x {% endset %}[{{ a }}]", "{% if false %}{% set q = 1 %}{% endif %}{{ q is defined }}{{ q }}",
    "{% if i > 5 %}a{% elif i > 3 %}b{% else %}c{% endif %}", "{% if e %}a{% elif i %}b{% endif %}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, c=5) }}|{{ m(b=1) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, x=2) }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro m() %}{{ later }}{% endmacro %}{% set later = 3 %}{{ m() }}", "{% macro m() %}x{% endmacro %}{{ m() | upper ~ m() }}",
    "{% filter upper | replace('A', 'b') %}aA{{ s }}{% endfilter %}", "{% with a = 1, b = i %}{{ a + b }}{% endwith %}{{ a }}",
    "{% raw %}{{ x }}{% if %}{% endraw %}", "a {%- raw -%}  x  {%- endraw -%}  b", "{% raw %}\n a\n{% endraw %}\nb",
    "a\n  {% if t %}\n  b\n  {% endif %}\nc\n", "a\n  {%- if t -%}\n  b\n  {%- endif -%}\nc\n", "  {%+ if t %}\n x{% endif +%}\n y",
    "a {{- i -}} b", "a {{ i }}\n b\n", "{{ i }}\n\n", "{# c #}\nx {#- c -#} y\n  {# z #}\nw", "a{#+ x +#}\nb", "\n{% if t %}\n{% endif %}\n\n",
    "x\r\ny\rz\n", "{{ 'a\nb' }}", "  {{ i }}  {% set x = 1 %}  \n", "{% for a in l %}\n{{ a }}\n{% endfor %}\n", "{%- for a in l %}{{ a }}{%- endfor %}",
    "{% for a in range(10) %}{% if a == 2 %}{% continue %}{% endif %}{% if a > 4 %}{% break %}{% endif %}{{ a }}{% endfor %}",
    "{% for a in l %}{{ loop.cycle('x', 'y') }}{{ loop.changed(a > 1) }}{% endfor %}", "{% generation %}{{ s }}{% endgeneration %}!",
    "{{ raise_exception('no ' ~ i) }}", "{{ 1, 2 }}", "{{ }}", "{{ 1 + }}", "{% if %}{% endif %}", "{% if 1 %}", "{% endif %}", "{{ 'a }}", "{{ (1 }}", "{# x",
    "{% set g = l | map('string') %}{{ g | join }}{{ g | join }}", "{% set x = 5 %}{% macro m(x) %}{{ x }}{% endmacro %}{{ m(1) }}{{ x }}",
    "{{ [1, 2,] }}{{ {'a': 1,} }}{{ (1, 2,) }}", "{{ {'a': {'b': 1}}.a.b }}", "{{ '}}' }}{{ '%}' }}", "{{ {'a': {}}}}", "{{ s if s }}{{ '' if not s }}", "{{ 1 is odd is even }}",
    "{% set loop = 3 %}{{ loop }}", "{{ not }}", "{% for x in l %}{{ x }}{% if loop.last %}.{% else %},{% endif %}{% endfor %}", "{% break %}",
    "{% print 1, s %}", "{{ messages }}", "{{ caller }}", "{{ l | select | list }}{{ ['', 'a'] | select | list }}",
]


def random_expressions(count):
    rng = random.Random(20240601)
    atoms = ["i", "n", "z", "f", "s", "u", "e", "t", "no", "l", "ls", "d", "zzz", "1", "2", "0", "2.5", "'a'", "'lo'", "[1, 2]", "none", "true", "d.k", "l[0]", "s[1]"]
    binary = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">=", "and", "or", "in", "not in"]
    filters = ["string", "length", "upper", "trim", "list", "first", "last", "default('x')", "int", "float", "abs", "join('-')", "tojson", "sort", "round", "title", "replace('l', 'LL')", "reverse | list"]
    tests = ["defined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "boolean", "true", "false", "undefined"]

    def expr(depth):
        if depth == 0 or rng.random() < 0.15:
            return rng.choice(atoms)
        kind = rng.randrange(9)
        a = expr(depth - 1)
        if kind <= 3:
            return f"{a} {rng.choice(binary)} {expr(depth - 1)}"
        if kind == 4:
            return f"({a}) | {rng.choice(filters)}"
        if kind == 5:
            return f"({a}) is {'not ' if rng.random() < .3 else ''}{rng.choice(tests)}"
        if kind == 6:
            return f"({a}) if {expr(depth - 1)} else ({expr(depth - 1)})"
        if kind == 7:
            return f"[{a}, {expr(depth - 1)}]" if rng.random() < .5 else f"({a})[{rng.choice(['0', '-1', '1:', '::-1', ':2'])}]"
        return f"{rng.choice(['not ', '-'])}({a})"
    return [expr(3) for _ in range(count)]


def render(template, variables):
    try:
        return {"text": _compile_jinja_template(template).render(**json.loads(json.dumps(variables)))}
    except RecursionError:
        raise
    except Exception:  # whatever the reference refuses, Halftone must refuse too
        return {"error": True}


def main():
    cases = []
    for name, template in CHATS.items():
        for conversation in CONVERSATIONS:
            for extra in ({}, {"tools": TOOLS, "date_string": "26 Jul"}, {"enable_thinking": False}):
                variables = {"messages": conversation, "add_generation_prompt": not extra, "bos_token": "<s>", "eos_token": "</s>", **extra}
                cases.append({"name": name, "template": template, "variables": variables, **render(template, variables)})
    expressions = [e for line in FIXED.strip().splitlines() for e in line.split(";")] + random_expressions(300)
    seen = set()
    for template in ["{{ " + e + " }}" for e in expressions] + STATEMENTS:
        if template in seen:
            continue
        seen.add(template)
        result = render(template, VALUES)
        if " object at 0x" in result.get("text", ""):  # an address is nothing to compare
            continue
        cases.append({"template": template, **result})
    json.dump({"variables": VALUES, "cases": cases}, sys.stdout, ensure_ascii=True, indent=0)
    print()


if __name__ == "__main__":
    main()
