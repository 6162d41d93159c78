package command

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// option is a setting of a process. The flag, the variable and the line of the
// configuration file have the same name and the same meaning.
type option struct {
	name  string // of the flag and of the file's line; the variable is PATHWAYS_ and the name in capitals
	value any    // the default, of the option's type: string, list, int, bool or time.Duration
	usage string // the word in backquotes stands for the value in --help
}

// list is the type of an option with several values, separated by commas. A flag that is given again adds to them.
type list string

// meaning returns the usage without quotes.
func (o *option) meaning() string { return strings.ReplaceAll(o.usage, "`", "") }

// options describes all settings. A command takes some of them, by name.
var options = []option{
	{"address", "", "`address` of the controller: unix:/path or tcp:host:port; default: that of the cluster that " +
		"pathways up started"},
	{"cluster", "default", "`name` of a cluster on this machine, such as one that pathways up started"},
	{"dir", "", "`directory` for the sockets and logs of this machine's clusters; default: $XDG_RUNTIME_DIR/pathways, " +
		"else ~/.pathways"},
	{"listen", list(""), "`addresses` to listen on, separated by commas; default: a unix socket in the cluster's " +
		"directory"},
	{"token-file", "", "`file` with the token: the cluster's own, or that of a role or a tenant; default on the " +
		"controller's machine: the cluster's own, from its directory; PATHWAYS_TOKEN holds the token itself"},
	{"tls-cert", "", "PEM `file` with this process's certificate; required for all addresses except loopback and unix"},
	{"tls-key", "", "PEM `file` with the certificate's key"},
	{"tls-ca", "", "PEM `file` with the certificate authority that signed the other processes' certificates"},
	{"tls-mutual", true, "whether clients must show a TLS certificate; if false, the token is enough"},
	{"workers", 2, "number of workers to start; on a machine with GPUs the default is 1"},
	{"devices", 0, "number of devices per worker; default: 1 on a CPU or simulated; all GPUs of the machine, divided " +
		"among the workers that pathways up starts"},
	{"first-device", 0, "index of the worker's first GPU, if several workers divide a machine's GPUs with --devices"},
	{"nodes", 0, "number of workers in the island whose devices share an interconnect, such as NCCL's; 0 means none"},
	{"memory-limit", "", "`bytes` of arrays on each device of a worker, such as 4GiB; default: the device's memory"},
	{"driver", "auto", "`driver` of the devices: auto, cpu, cuda, tpu, the path of a PJRT plugin, sim for simulated " +
		"devices, or sim:KIND for those of a platform sim_KIND; pathways up accepts a list with numbers of workers and " +
		"devices: cuda=1x8,cpu=2 starts one worker with 8 GPUs and two with CPUs; each driver after the first has an " +
		"island of its own name"},
	{"platform", "", "`platform` of a script's devices, such as cpu, cuda or tpu, if the cluster has several; or a " +
		"list, separated by commas; default: accelerators (those of the worker whose name sorts first), or else cpu"},
	{"island", placement.DefaultIsland, "`name` of the island that a worker's devices belong to"},
	{"import", list(""), "Python `modules` that a worker imports when it starts, separated by commas, such as modules " +
		"that register FFI handlers"},
	{"name", "", "`name` of this process in reports; default: host and process ID"},
	{"cache", "", "`directory` for compiled programs, kept over restarts and shared by workers that name the same " +
		"directory; default: none"},
	{"cache-bytes", "16GiB", "size limit in `bytes` of the directory of --cache; the least recently used programs are " +
		"deleted; empty means no limit"},
	{"heartbeat", time.Second, "interval of the heartbeats of processes"},
	{"silence", 10 * time.Second, "time without a heartbeat after which a process counts as lost"},
	{"lease", time.Duration(0),
		"time that a client or worker without a connection to the controller keeps its place in the cluster; 0 means " +
			"that it loses its place with its connection; the default of pathways up is " + upLease.String()},
	{"state", "", "`directory` for the controller's state: with --lease, sessions and arrays survive a restart of the " +
		"controller; default: none"},
	{"evict-after", time.Minute,
		"time that a computation may run after its session has ended; then its worker restarts and loses its arrays; 0 " +
			"means no limit"},
	{"order", "fair", "scheduling of several sessions' runs on a device: fair, by their shares of device time; or fifo, " +
		"first come, first served"},
	{"tenants", "", "TOML `file` of the tenants that share the cluster: their tokens, weights and quotas; default: each " +
		"session is a tenant of its own"},
	{"stuck-after", time.Minute,
		"time without progress (no device computes, no data arrives for collectives) after which a computation is " +
			"aborted; the error says what it waited for; 0 means no limit"},
	{"memory-wait", time.Minute,
		"time that an operation waits for device memory of other sessions before it fails"},
	{"http", "", "`address` of a web page that shows the cluster, and of metrics for Prometheus, such as " +
		"127.0.0.1:8080; default: none"},
	{"no-restart", false, "start no supervisor, the background process that restarts workers and the controller when " +
		"they die"},
	{"dispatch", "parallel",
		"`order` of dispatch: parallel sends a gang before the gangs that it reads from have ended, sequential after " +
			"that"},
	{"batch", true, "whether queued calls are sent together; false is slower"},
	{"wait", time.Minute, "time to wait for the processes of a cluster to start or to end"},
	{"log", "warn", "lowest `level` that is logged: debug, info, warn or error"},
	{"json", false, "print JSON"},
	{"last", 100, "`number` of events to show, newest last"},
	{"follow", false, "also show new events as they happen, until stopped"},
	{"config", "", "`file` with lines of the form name = value, for options that neither a flag nor a variable sets; " +
		"unknown names are errors"},
}

// ofScripts lists the options that no command has, only scripts.
var ofScripts = []string{"batch", "platform"}

// variable returns the environment variable of an option.
func variable(name string) string {
	return "PATHWAYS_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// take adds the named options to a command, and also log and config.
func take(cmd *cobra.Command, names ...string) {
	for _, o := range options {
		if !slices.Contains(names, o.name) && o.name != "log" && o.name != "config" {
			continue
		}
		o.add(cmd.Flags())
	}
}

// takeAsking is take for a command that asks a controller: see reach. The names are of further options.
func takeAsking(cmd *cobra.Command, names ...string) {
	take(cmd, append([]string{"address", "cluster", "dir", "token-file", "tls-cert", "tls-key", "tls-ca"}, names...)...)
}

// add adds the option to flags.
func (o *option) add(flags *pflag.FlagSet) {
	usage := o.usage + " [" + variable(o.name) + "]"
	switch v := o.value.(type) {
	case string:
		flags.String(o.name, v, usage)
	case list:
		flags.Var(new(several), o.name, usage)
	case int:
		flags.Int(o.name, v, usage)
	case bool:
		flags.Bool(o.name, v, usage)
	case time.Duration:
		flags.Duration(o.name, v, usage)
	}
}

// several is the value of a flag of a list.
type several struct {
	text string
	set  bool
}

// Set implements pflag.Value.
func (v *several) Set(text string) error {
	if v.set {
		text = v.text + "," + text
	}
	v.text, v.set = text, true
	return nil
}

// String implements pflag.Value.
func (v *several) String() string { return v.text }

// Type implements pflag.Value. To those who read it, the value is a text.
func (v *several) Type() string { return "string" }

// settle sets the options that no flag has set from variables or else from the file.
//
// Errors: INVALID_ARGUMENT for an invalid value, or for a line of the file that names no
// option; NOT_FOUND if the file does not exist.
func settle(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	path, _ := flags.GetString("config")
	if path == "" {
		path, _ = lookup(variable("config"))
	}
	file, err := readConfig(path)
	if err != nil {
		return err
	}
	// A flag that names a cluster takes precedence over PATHWAYS_ADDRESS, which the shell may have for scripts.
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
			broken = status.New(status.InvalidArgument, "%s sets %s to %q: %v", from, f.Name, text, err)
		}
	})
	return broken
}

// valueOf returns the value for a flag that a variable or a file sets to text. A bare number for a time means seconds
// there, as it does for scripts.
func valueOf(f *pflag.Flag, text string) string {
	if _, err := strconv.ParseFloat(text, 64); err == nil && f.Value.Type() == "duration" {
		return text + "s"
	}
	return text
}

// settings holds the options of the command that was called.
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

// size parses a number of bytes, with or without a unit; "" is 0.
//
// Errors: INVALID_ARGUMENT.
func (s settings) size(name string) (int64, error) {
	text := strings.TrimSpace(s.text(name))
	if text == "" {
		return 0, nil
	}
	if n, ok := shape.ParseBytes(text); ok {
		return n, nil
	}
	return 0, usage{status.New(status.InvalidArgument, "--%s is %q; expected bytes, such as 4GiB or 500000000", name,
		text)}
}

// list splits a text at its commas.
func (s settings) list(name string) []string {
	return strings.FieldsFunc(s.text(name), func(r rune) bool { return r == ',' || r == ' ' })
}
