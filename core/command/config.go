package command

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/pflag"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
)

// said is the value that a line of a configuration file sets.
type said struct {
	text string // the value
	line int
}

// kinds are the types of flags, in words.
var kinds = map[string]string{"int": "a whole number", "bool": "true or false", "duration": "a time"}

// readConfig reads a configuration file and checks every line of it, even those for options that the command does not
// take. It returns the values by option. The path "" means no file.
//
// jax_plugins/pathways/config.py reads the same file for scripts.
//
// Errors: INVALID_ARGUMENT for a line that names no option or has an invalid value, NOT_FOUND if the file does not
// exist, and those of system.Error for other errors in reading it.
func readConfig(path string) (map[string]said, error) {
	file := map[string]said{}
	if path == "" {
		return file, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, system.Error(err, "the configuration file cannot be read")
	}
	var values map[string]any
	if _, err := toml.Decode(string(text), &values); err != nil {
		var wrong toml.ParseError
		if !errors.As(err, &wrong) {
			return nil, status.New(status.InvalidArgument, "%s: %w; expected %s", path, err, expectedLines())
		}
		return nil, status.New(status.InvalidArgument, "%s, line %d: %s%s; expected %s",
			path, wrong.Position.Line, wrong.Message, quotesMissing(string(text), wrong.Position.Line), expectedLines())
	}
	for name, value := range values {
		file[name] = said{fmt.Sprint(value), lineOf(string(text), name)}
	}
	for _, name := range byLine(file) { // so that the first of several mistakes is reported
		at := fmt.Sprintf("%s, line %d", path, file[name].line)
		i := slices.IndexFunc(options, func(o option) bool { return o.name == name && name != "config" })
		if i < 0 {
			return nil, status.New(status.InvalidArgument, "%s: there is no option %q; expected %s", at, name, expectedLines())
		}
		switch values[name].(type) {
		case string, int64, float64, bool:
		default:
			return nil, status.New(status.InvalidArgument,
				"%s: the value of %s is a list, a table or a date; expected a text in quotes, a number, true or false", at, name)
		}
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		options[i].add(flags)
		if f := flags.Lookup(name); f.Value.Set(valueOf(f, file[name].text)) != nil {
			return nil, status.New(status.InvalidArgument, "%s: %s is %q; expected %s, such as %v", at, name, file[name].text,
				kinds[f.Value.Type()], options[i].value)
		}
	}
	return file, nil
}

// assigned matches a line whose value has no quotes; lettered matches what only texts contain, not numbers.
var assigned, lettered = regexp.MustCompile(`^[^=#]+=\s*([^\s"'\[{#][^"'#]*?)\s*(?:#.*)?$`),
	regexp.MustCompile(`[A-Za-z/~]`)

// quotesMissing returns an addition to the error about a line of a file, if its value is a text without quotes.
func quotesMissing(text string, line int) string {
	lines := strings.Split(text, "\n")
	if line < 1 || line > len(lines) {
		return ""
	}
	value := assigned.FindStringSubmatch(strings.TrimRight(lines[line-1], "\r"))
	if value == nil || !lettered.MatchString(value[1]) || strings.EqualFold(value[1], "true") ||
		strings.EqualFold(value[1], "false") {
		return ""
	}
	return fmt.Sprintf("; a text needs quotes: %q", value[1])
}

// expectedLines describes the lines of a configuration file.
func expectedLines() string {
	var names []string
	for _, o := range options {
		if o.name != "config" {
			names = append(names, o.name)
		}
	}
	slices.Sort(names)
	return "lines of the form name = value, such as wait = \"1m\", and the names are " + strings.Join(names, ", ")
}

// lineOf returns the number, from 1, of the first line of a file that begins with a name, or the last line's.
func lineOf(text, name string) int {
	begins := regexp.MustCompile(`^\s*\[*\s*["']?` + regexp.QuoteMeta(name) + `["']?\s*[].=]`)
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if i := slices.IndexFunc(lines, begins.MatchString); i >= 0 {
		return i + 1
	}
	return len(lines)
}

// byLine returns the names in a file in the order of their lines.
func byLine(file map[string]said) []string {
	var names []string
	for name := range file {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return 2*(file[a].line-file[b].line) + strings.Compare(a, b)
	})
	return names
}

// Lookup returns a lookup of variables that falls back on the file of PATHWAYS_CONFIG. A variable that is set takes
// precedence.
//
// Errors: those of readConfig.
func Lookup(lookup func(variable string) (string, bool)) (func(variable string) (string, bool), error) {
	path, _ := lookup(variable("config"))
	file, err := readConfig(path)
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for name, said := range file {
		values[variable(name)] = said.text
	}
	return func(variable string) (string, bool) {
		if v, ok := lookup(variable); ok && v != "" {
			return v, true
		}
		v, ok := values[variable]
		return v, ok
	}, nil
}
