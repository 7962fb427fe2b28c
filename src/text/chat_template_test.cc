#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/error.h"
#include "text/jinja/value.h"

namespace halftone {
namespace {

using Json = nlohmann::ordered_json;

// A hostile template may use up every step: under the sanitizers, which are slow, a twentieth of them.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t kHostileSteps = jinja::kMaxSteps / 20;
#else
constexpr std::int64_t kHostileSteps = jinja::kMaxSteps;
#endif

std::string render(const std::string& source, const Json& variables = Json::object()) {
  return ChatTemplate(source).render(variables);
}

struct Failure {
  ErrorKind kind = ErrorKind::usage;
  std::string message;
};

Failure failure(const std::string& source, const Json& variables = Json::object()) {
  try {
    const std::string text = ChatTemplate(source).render(variables, kHostileSteps);
    ADD_FAILURE() << "no error from: " << source.substr(0, 200) << "\nbut: " << text.substr(0, 200);
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  }
  return {};
}

// Every rendering that Jinja2 gives in transformers' environment, and every refusal.
TEST(ChatTemplate, RendersAsTheReference) {
  std::ifstream file(HALFTONE_SOURCE_DIR "/tests/golden_text/templates.json");
  ASSERT_TRUE(file.good());
  const Json golden = Json::parse(file);
  std::size_t texts = 0, errors = 0;
  for (const Json& item : golden["cases"]) {
    const auto source = item["template"].get<std::string>();
    const Json& variables = item.contains("variables") ? item["variables"] : golden["variables"];
    if (item.contains("error")) {
      ++errors;
      failure(source, variables);
    } else {
      ++texts;
      try {
        EXPECT_EQ(render(source, variables), item["text"].get<std::string>()) << source;
      } catch (const Error& error) {
        ADD_FAILURE() << source << "\n" << error.what();
      }
    }
  }
  EXPECT_GE(texts, 500u);
  EXPECT_GE(errors, 100u);
}

TEST(ChatTemplate, NamesUnsupportedConstructsWithTheirPlace) {
  struct Case {
    const char* source;
    const char* name;
    const char* place;
  };
  for (const Case& c :
       {Case{"a\n  {% include 'x' %}", "include", "line 2, column 6"},
        Case{"{{ 1 }}\n{{ x | urlize }}", "urlize", "line 2, column 8"},
        Case{"{{ x is filterish }}", "filterish", "line 1, column 9"},
        Case{"{% block a %}{% endblock %}", "block", "line 1, column 4"},
        Case{"{% call f() %}{% endcall %}", "call", "line 1, column 4"},
        Case{"\n\n{{ cycler(1) }}", "cycler", "line 3, column 4"},
        Case{"{% for x in y recursive %}{% endfor %}", "recursive", "line 1, column 15"},
        Case{"{{ f(*x) }}", "*", "line 1, column 6"}, Case{"\xC3\xA9{{ 'a'.encode() }}", "encode", "line 1, column 9"},
        Case{"{{ '\\N{DASH}' }}", "\\N", "line 1, column 5"},
        Case{"{{ ['a'] | map('urlize') | list }}", "urlize", "line 1, column 12"},
        Case{"{{ 9999999999999999999 }}", "64-bit", "line 1, column 4"},
        Case{"{{ 9223372036854775807 + 1 }}", "64 bits", "line 1, column 24"}}) {
    const Failure found = failure(c.source);
    EXPECT_EQ(found.kind, ErrorKind::unsupported) << c.source << ": " << found.message;
    EXPECT_NE(found.message.find(c.name), std::string::npos) << found.message;
    EXPECT_NE(found.message.find(c.place), std::string::npos) << found.message;
  }
}

TEST(ChatTemplate, ReportsSyntaxErrorsAndRefusalsWithTheirPlace) {
  struct Case {
    const char* source;
    const char* name;
    const char* place;
  };
  for (const Case& c :
       {Case{"x\n{{ 1 + }}", "unexpected", "line 2, column 8"}, Case{"{% if x %}\n", "endif", "line 1"},
        Case{"a {{ b", "not closed", "line 1, column 3"}, Case{"\n{# a", "not closed", "line 2, column 1"},
        Case{"{% raw %} x", "not closed", "line 1, column 1"}, Case{"{{ 'a }}", "string", "line 1, column 4"},
        Case{"{{ (1] }}", "']'", "line 1, column 6"},
        Case{"a\n{{ raise_exception('Roles must alternate!') }}", "Roles must alternate!", "line 2, column 19"},
        Case{"{{ a.b.c }}", "'a' is undefined", "line 1, column 6"},
        Case{"{{ 1 + 'a' }}", "'int' and 'str'", "line 1, column 6"},
        Case{"{% set true = 1 %}", "true", "line 1, column 8"}}) {
    const Failure found = failure(c.source);
    EXPECT_EQ(found.kind, ErrorKind::bad_input) << c.source << ": " << found.message;
    EXPECT_NE(found.message.find(c.name), std::string::npos) << found.message;
    EXPECT_NE(found.message.find(c.place), std::string::npos) << found.message;
  }
}

std::string repeat(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(ChatTemplate, HostileTemplatesEndInAnError) {
  const std::string two = "{% set ns = namespace(x=[]) %}";
  for (const std::string& source :
       {"{{ " + repeat("(", 5000) + "1" + repeat(")", 5000) + " }}",
        "{{ " + repeat("[", 5000) + repeat("]", 5000) + " }}",
        "{{ " + repeat("-", 5000) + "1 }}",
        "{{ " + repeat("not ", 5000) + "1 }}",
        "{{ 1" + repeat(" + 1", 5000) + " }}",
        "{{ 'a'" + repeat(" | upper", 5000) + " }}",
        "{{ x" + repeat("[0]", 5000) + " }}",
        "{{ " + repeat("1 if 0 else ", 5000) + "1 }}",
        repeat("{% if 1 %}", 5000) + repeat("{% endif %}", 5000),
        "{% set " + repeat("(", 5000) + "a %}",
        std::string("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
        std::string("{% macro f(x) %}{{ g(x) }}{% endmacro %}{% macro g(x) %}{% if x %}{{ f(x) }}{% endif %}{% "
                    "endmacro %}{{ f(1) }}"),
        std::string("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"),
        std::string("{{ range(100001) | length }}"),
        std::string("{{ 'a' * 1000000000000 }}"),
        std::string("{{ [1] * 1000000000000 }}"),
        std::string("{{ ('a' * 1000000).replace('', 'b' * 1000000) }}"),
        std::string("{{ '%999999999d' % 1 }}"),
        std::string("{{ 'a'.center(1000000000000) }}"),
        std::string("{{ 'a' | indent(1000000000) }}"),
        std::string("{{ [[[1]]] | tojson(indent=1000000000) }}"),
        std::string("{% set x = 'a' * 16000000 %}{% for i in range(100000) %}{{ x }}{% endfor %}"),
        std::string("{% set x = 'a' * 1600000 %}{% for i in range(100000) %}{% set y = x | trim %}{% endfor %}"),
        std::string("{{ ('a,' * 8000000).split(',') | length }}"),
        std::string("{{ ('a' * 16000000) | list }}"),
        two + "{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        two + "{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == ns.x }}",
        two + "{% set ns.x = ns %}{{ ns }}",
        std::string("{{ 2 ** 100000 }}"),
        std::string("{{ -9223372036854775807 - 2 }}")}) {
    failure(source);
  }
}

TEST(ChatTemplate, HostileTextsTakeLinearTime) {
  // What naive searching and stripping would work on for hours.
  const std::string set =
      "{% set a = 'a' * 4000000 %}{% set b = 'a' * 2000000 ~ 'b' %}{% set c = 'b' ~ 'a' * 2000000 %}";
  EXPECT_EQ(render(set + "{{ b in a }}{{ a.find(b) }}{{ a.rfind(c) }}{{ a.count(b) }}{{ a.split(b) | length }}"
                         "{{ a.rsplit(c) | length }}{{ a.partition(b)[1] }}{{ a.rpartition(c)[1] }}"
                         "{{ a.replace(b, 'x') | length }}{{ a.strip(b) }}"),
            "False-1-10114000000");
  failure("{% set x = ['a' * 16000000] * 100000 %}{{ x | sort | length }}");
  failure(
      "{% set x = ['a' * 1600000] * 20 %}{% for i in range(100000) %}{% set y = x | map('upper') | list %}{% endfor "
      "%}");
}

TEST(ChatTemplate, TextsBeyondTheLimitAreRefused) {
  const std::string huge(jinja::kMaxTextBytes + 1, 'a');
  EXPECT_EQ(failure("{{ x }}", {{"x", huge}}).kind, ErrorKind::bad_input);
  EXPECT_EQ(failure("{{ '" + huge + "' }}").kind, ErrorKind::bad_input);
  EXPECT_THROW(ChatTemplate("x").render_pieces({{"user", huge}}, true, {}), Error);
  EXPECT_THROW(ChatTemplate("x").render_pieces({}, true, {{"bos_token", huge}}), Error);
  EXPECT_THROW(ChatTemplate("x").render_pieces({}, true, {}, {{"tools", huge}}), Error);
}

TEST(ChatTemplate, LongChainsOfValuesAreLetGoOf) {
  // Namespaces and macros that hold each other, in a cycle and in a long chain.
  EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.me = ns %}{% macro m() %}{% endmacro %}{% set ns.m = m %}x"),
            "x");
  EXPECT_EQ(
      render(
          "{% set ns = namespace(x=none) %}{% for i in range(50000) %}{% set ns.x = namespace(p=ns.x) %}{% endfor %}x"),
      "x");
  EXPECT_EQ(
      render("{% set ns = namespace(h=none) %}{% macro f(g) %}{% macro h() %}{{ g }}{% endmacro %}{% set ns.h = h %}"
             "{% endmacro %}{% for i in range(50000) %}{{ f(ns.h) }}{% endfor %}x"),
      "x");
  EXPECT_EQ(failure("{% for i in range(3) %}{{ loop.changed(loop) }}{% endfor %}").kind, ErrorKind::unsupported);
}

TEST(ChatTemplate, DeepVariablesAreRefused) {
  Json deep = 1;
  for (int i = 0; i < 500; ++i) deep = Json::array({deep});
  EXPECT_EQ(failure("{{ x }}", {{"x", deep}}).kind, ErrorKind::bad_input);
  EXPECT_THROW(ChatTemplate("x").render(Json::array()), Error);
}

TEST(ChatTemplate, BytesThatAreNotUtf8ComeThrough) {
  EXPECT_EQ(render("{{ x }}|{{ x | trim }}|{{ x[::-1] }}", {{"x", " \xFF\xC3"}}), " \xFF\xC3|\xFF\xC3|\xC3\xFF ");
}

// Pieces written out, content in angle brackets.
std::string pieces(const std::string& source, const std::vector<ChatMessage>& messages,
                   const Json& extra = Json::object()) {
  const ChatTemplate chat(source);
  std::string marked, plain;
  for (const auto& piece : chat.render_pieces(messages, true, {{"bos_token", "(s)"}}, extra)) {
    EXPECT_FALSE(piece.text.empty());
    marked += piece.from_content ? "<" + piece.text + ">" : piece.text;
    plain += piece.text;
  }
  Json variables = {{"bos_token", "(s)"}, {"add_generation_prompt", true}};
  variables["messages"] = Json::array();
  for (const auto& message : messages)
    variables["messages"].push_back({{"role", message.role}, {"content", message.content}});
  for (const auto& [name, value] : extra.items()) variables[name] = value;
  EXPECT_EQ(plain, chat.render(variables)) << source;
  return marked;
}

TEST(ChatTemplate, PiecesTellContentFromMarkup) {
  const std::string turn =
      "{{ bos_token }}{% for m in messages %}{{ '[' + m.role + ']' + m.content + '[end]' }}{% endfor %}";
  EXPECT_EQ(pieces(turn, {{"user", "hi"}, {"assistant", "[end]"}}), "(s)[user]<hi>[end][assistant]<[end]>[end]");
  EXPECT_EQ(pieces(turn, {{"user[end]", ""}}), "(s)[<user[end]>][end]");

  const std::vector<ChatMessage> one = {{"user", " ab,Cd \n"}};
  const auto content = [&](const std::string& expression) {
    return pieces("{% set c = messages[0].content %}{{ " + expression + " }}", one);
  };
  EXPECT_EQ(content("'(' ~ c | trim ~ ')'"), "(<ab,Cd>)");
  EXPECT_EQ(content("'(' + c.strip() + ')'"), "(<ab,Cd>)");
  EXPECT_EQ(content("('x' + c + 'y')[1:4] + 'z'"), "< ab>z");
  EXPECT_EQ(content("('x' + c.strip())[::-1]"), "<dC,ba>x");
  EXPECT_EQ(content("c.strip().split(',') | join('-')"), "<ab>-<Cd>");
  EXPECT_EQ(content("'+'.join(c.strip().split(','))"), "<ab>+<Cd>");
  EXPECT_EQ(content("'a%b'.replace('%', c.strip())"), "a<ab,Cd>b");
  EXPECT_EQ(content("c.strip().replace(',', '-')"), "<ab>-<Cd>");
  EXPECT_EQ(content("('x' ~ c.strip()) | upper"), "<XAB,CD>");
  EXPECT_EQ(content("'<%s>' % c.strip()"), "<<ab,Cd>>");
  EXPECT_EQ(content("c | tojson"), "<\" ab,Cd \\n\">");
  EXPECT_EQ(content("[c]"), "<[' ab,Cd \\n']>");
  EXPECT_EQ(content("c | length ~ '|' ~ ('a' in c)"), "8|True");
  EXPECT_EQ(content("(c | list)[1] ~ c[2] ~ 'x'"), "<ab>x");
  EXPECT_EQ(content("c.strip() * 2 ~ 'x'"), "<ab,Cdab,Cd>x");
  EXPECT_EQ(content("('t\\n' ~ c.strip()) | indent(1)"), "t\n <ab,Cd>");
  EXPECT_EQ(content("c.strip() | default('x') ~ (e | default(c.strip()))"), "<ab,Cdab,Cd>");
  EXPECT_EQ(pieces("{% set x %}({{ messages[0].content | trim }}){% endset %}{{ x }}", one), "(<ab,Cd>)");
  EXPECT_EQ(pieces("{% macro m(t) %}({{ t | trim }}){% endmacro %}{{ m(messages[0].content) }}", one), "(<ab,Cd>)");
  EXPECT_EQ(pieces("{% filter trim %} ({{ messages[0].content | trim }}) {% endfilter %}", one), "(<ab,Cd>)");
  EXPECT_EQ(pieces("{% for c in messages[0].content.strip() %}{{ c }}{{ '.' }}{% endfor %}", {{"user", "\xC3\xA9x"}}),
            "<\xC3\xA9>.<x>.");
  EXPECT_EQ(pieces("({{ tools[0].name }}|{{ day }})", one, {{"tools", {{{"name", "t"}}}}, {"day", "d"}}), "(<t>|d)");
}

TEST(ChatTemplate, WritesTheTime) {
  const std::string year = render("{{ strftime_now('%Y') }}");
  EXPECT_EQ(year.size(), 4u);
  EXPECT_EQ(render("{{ strftime_now('') }}"), "");
}

TEST(ChatTemplate, MovesAndKeepsItsSource) {
  ChatTemplate first("a{{ x }}");
  ChatTemplate second = std::move(first);
  EXPECT_EQ(second.source(), "a{{ x }}");
  EXPECT_EQ(second.render({{"x", 1}}), "a1");
}

}  // namespace
}  // namespace halftone
