package command

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
)

// option is one setting of a process: a flag, a variable and a line of the
// configuration file have one name and one meaning.
type option struct {
	name  string // of the flag and of the file's line; the variable is PATHWAYS_ and the name in capitals
	value any    // the default, of the option's type: string, int, bool or time.Duration
	usage string // the word in backquotes stands for the value in --help
}

// meaning is the usage without quotes.
func (o *option) meaning() string { return strings.ReplaceAll(o.usage, "`", "") }

// options is the one place where settings are described. A command takes some of
// them by name.
var options = []option{
	{"address", "", "`address` of the controller: unix:/path or tcp:host:port; default: that of the cluster pathways up started"},
	{"cluster", "default", "`name` of a cluster on this machine, for those that pathways up starts"},
	{"dir", "", "`directory` in which clusters of this machine keep sockets and logs; default: $XDG_RUNTIME_DIR/pathways, else ~/.pathways"},
	{"listen", "", "`addresses` to listen on, separated by commas; default: a unix socket in the cluster's directory"},
	{"token-file", "", "`file` with the secret that all processes of a cluster share; default: on one machine, the one that the controller keeps in the cluster's directory; PATHWAYS_TOKEN holds the secret itself"},
	{"tls-cert", "", "PEM `file` with this process's certificate; needed on every address but loopback and unix"},
	{"tls-key", "", "PEM `file` with the certificate's key"},
	{"tls-ca", "", "PEM `file` with the authority that signed the other processes' certificates"},
	{"tls-mutual", true, "whether those who connect by TLS need a certificate, too; false: the token is enough"},
	{"workers", 2, "how many workers to start"},
	{"devices", 0, "how many devices a worker makes, on a CPU or simulated; 0 is one"},
	{"nodes", 0, "how many workers of the island join their devices to one interconnect; 0: each has its own"},
	{"memory-limit", "", "`bytes` that arrays may have on each device of a worker, such as 4GiB; empty: as many as there is room for"},
	{"driver", "auto", "`driver` of the devices: auto, cpu, cuda, tpu, sim, or the path of a PJRT plugin"},
	{"island", placement.DefaultIsland, "`name` of the island a worker's devices belong to"},
	{"import", "", "Python `modules` that a worker imports first, separated by commas: those that register FFI handlers"},
	{"name", "", "`name` of this process in reports; default: host and process number"},
	{"cache", "", "`directory` that keeps compiled programs over restarts; empty: none are kept"},
	{"heartbeat", time.Second, "how often processes say that they live"},
	{"silence", 10 * time.Second, "how long a process may be silent before it is taken for lost"},
	{"lease", time.Duration(0), "how long a session, and the work that it has queued, outlives its connection; 0: it ends with it"},
	{"evict-after", time.Minute, "how long a computation may go on after its session has gone; then its worker starts anew, and arrays on it are lost; 0: for as long as it takes"},
	{"no-restart", false, "leave workers that die dead; otherwise a process that pathways up leaves behind starts them again"},
	{"dispatch", "parallel", "`order` of gangs: parallel, they are sent before those they read from have ended; sequential, after"},
	{"batch", true, "calls that queue up leave together; false: each by itself, which is slower"},
	{"wait", time.Minute, "how long to wait for the processes of a cluster to come up or go"},
	{"log", "warn", "least `level` of what is logged: debug, info, warn, error"},
	{"json", false, "print the answer as JSON"},
	{"config", "", "`file` with lines of the form name = value, for options given neither as flags nor as variables; a line that names none is an error"},
}

// ofScripts are the options that no command has: those of clients.
var ofScripts = []string{"batch"}

// variable is the environment's name for an option.
func variable(name string) string {
	return "PATHWAYS_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// take gives a command the options it names, and log and config.
func take(cmd *cobra.Command, names ...string) {
	for _, o := range options {
		if !slices.Contains(names, o.name) && o.name != "log" && o.name != "config" {
			continue
		}
		o.add(cmd.Flags())
	}
}

// add makes the option one of flags.
func (o *option) add(flags *pflag.FlagSet) {
	usage := o.usage + " [" + variable(o.name) + "]"
	switch v := o.value.(type) {
	case string:
		flags.String(o.name, v, usage)
	case int:
		flags.Int(o.name, v, usage)
	case bool:
		flags.Bool(o.name, v, usage)
	case time.Duration:
		flags.Duration(o.name, v, usage)
	}
}

// settle fills what was not said by flags from variables and the file, in this
// order.
//
// Errors: INVALID_ARGUMENT for a value that does not fit its option or a line of
// the file that names none, NOT_FOUND for a file that is not there.
func settle(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	path, _ := flags.GetString("config")
	if path == "" {
		path, _ = lookup(variable("config"))
	}
	file, err := readConfig(path)
	if err != nil {
		return err
	}
	// A cluster that a flag names is the one that is meant, whatever address the shell has for scripts.
	named := flags.Changed("cluster") || flags.Changed("dir")
	var broken error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || broken != nil || f.Name == "config" || f.Name == "address" && named {
			return
		}
		text, from := "", ""
		if v, ok := lookup(variable(f.Name)); ok && v != "" {
			text, from = v, variable(f.Name)
		} else if said, ok := file[f.Name]; ok {
			text, from = said.text, fmt.Sprintf("%s, line %d,", path, said.line)
		} else {
			return
		}
		if err := flags.Set(f.Name, valueOf(f, text)); err != nil {
			broken = status.New(status.InvalidArgument, "%s says %s is %q: %v", from, f.Name, text, err)
		}
	})
	return broken
}

// valueOf returns the value that a variable or a file gives a flag. A time may be a number alone there: seconds, as
// scripts read it.
func valueOf(f *pflag.Flag, text string) string {
	if _, err := strconv.ParseFloat(text, 64); err == nil && f.Value.Type() == "duration" {
		return text + "s"
	}
	return text
}

// settings are the options of a command that was called.
type settings struct{ *pflag.FlagSet }

func (s settings) text(name string) string {
	v, err := s.GetString(name)
	if err != nil {
		panic(err) // the command did not take the option
	}
	return v
}

func (s settings) number(name string) int {
	v, err := s.GetInt(name)
	if err != nil {
		panic(err)
	}
	return v
}

func (s settings) flag(name string) bool {
	v, err := s.GetBool(name)
	if err != nil {
		panic(err)
	}
	return v
}

func (s settings) time(name string) time.Duration {
	v, err := s.GetDuration(name)
	if err != nil {
		panic(err)
	}
	return v
}

// Units of bytes, longest first.
var units = []struct {
	name  string
	bytes int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
}

// size reads a number of bytes, with or without a unit; "" is 0.
//
// Errors: INVALID_ARGUMENT.
func (s settings) size(name string) (int64, error) {
	text := strings.TrimSpace(s.text(name))
	if text == "" {
		return 0, nil
	}
	digits, unit := text, int64(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			digits, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := strconv.ParseFloat(digits, 64)
	if bytes := n * float64(unit); err == nil && bytes >= 0 && bytes < math.MaxInt64 {
		return int64(bytes), nil
	}
	return 0, usage{status.New(status.InvalidArgument, "--%s is %q; expected bytes, such as 4GiB or 500000000", name, text)}
}

// list splits a text at its commas.
func (s settings) list(name string) []string {
	return strings.FieldsFunc(s.text(name), func(r rune) bool { return r == ',' || r == ' ' })
}
