// Package command implements the command line of Open Pathways: it runs controllers,
// workers and whole clusters on one machine, and shows their state.
//
// The same commands are a plain Go program (capi/cmd/pathways) and part of
// libpathways.so, where the Python package calls them. The two differ in which drivers
// are linked in, and in how a process starts another one like itself.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
)

// The exit codes.
const (
	ExitSuccess = 0
	ExitFailed  = 1   // failure; the error says why
	ExitUsage   = 2   // invalid command line
	ExitStopped = 130 // stopped by a signal before it was done
)

// Env is what the program around the command line provides to it.
type Env struct {
	// Self is the command that starts another process like this one, such as the
	// path of this program.
	Self []string
	// Kinds finds devices: name is the value of --driver, count that of --devices (0 if
	// it was not set), and first that of --first-device.
	Kinds func(name string, count, first int) (device.Kind, error)
	// GPUs counts the GPUs of this machine that a driver of this name would use; nil means
	// that there are none.
	GPUs func(name string) int
	// Handler registers a handler of XLA custom calls, which a client has registered, in
	// this process. Nil means that the program supports none.
	Handler func(*wire.Handler) error
	// Versions are the versions that must agree in a cluster, by name, such as "jax".
	Versions map[string]string
	Version  string // of Pathways
	// Imported lists the modules of --import that the program has imported.
	Imported []string
	// Elsewhere describes, in a line each, commands that the program runs itself, so that
	// help lists them.
	Elsewhere map[string]string
	Out, Err  io.Writer // Err is written by several goroutines: what a process logs, and that it serves
	Lookup    func(variable string) (string, bool)
}

// program is one call of the command line.
type program struct {
	Env
	out, err io.Writer
	// endsWith is the signal that processes of a cluster get when this one is killed; 0 means that they outlive it.
	endsWith syscall.Signal
}

// usage marks an error of the command line itself.
type usage struct{ error }

// Main runs a command line, given without the program's name, and returns the exit code. Once SIGINT or SIGTERM has
// ended a command, the process is about to end with that code, which another such signal must not replace by its own:
// Main then leaves both caught. Otherwise it leaves them as they were before.
func Main(ctx context.Context, args []string, env Env) int {
	if env.Lookup == nil {
		env.Lookup = os.LookupEnv
	}
	p := &program{Env: env, out: env.Out, err: env.Err}
	root := p.root()
	root.SetArgs(append([]string{}, args...)) // of nil, cobra would take the process's own
	root.SetOut(p.out)
	root.SetErr(p.err)
	until, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	code := p.exit(until, root.ExecuteContext(until))
	if signaled := until.Err() != nil && ctx.Err() == nil; !signaled {
		stop()
	}
	return code
}

// exit prints why a command has failed, if it has, and returns the exit code.
func (p *program) exit(ctx context.Context, err error) int {
	var wrong usage
	var child childExit
	switch {
	case err == nil:
		return ExitSuccess
	case errors.As(err, &child):
		return int(child)
	case errors.As(err, &wrong):
		fmt.Fprintf(p.err, "pathways: %v\n", err)
		return ExitUsage
	case status.CodeOf(err) == status.Cancelled && ctx.Err() != nil:
		fmt.Fprintf(p.err, "pathways: %v\n", err)
		return ExitStopped
	}
	fmt.Fprintf(p.err, "pathways: %s: %v\n", status.CodeOf(err), err)
	return ExitFailed
}

const rootHelp = `Open Pathways runs ordinary JAX on every accelerator of a cluster from one process.
A script needs one line before its first use of JAX: import pathways

In one process, on the devices of this machine:

  pathways doctor                            # shows what is installed, and what is missing
  PATHWAYS_DEVICES=8 python train.py         # on a CPU, with any number of devices

In several processes, on this machine:

  pathways up --workers 4 --devices 2        # eight devices in four worker processes
  export PATHWAYS_ADDRESS=$(pathways address)
  python train.py                            # JAX shows all eight
  pathways down

On several machines: pathways controller on one of them, pathways worker on each.

environment variables for scripts:
  PATHWAYS_ADDRESS       address of a cluster; default: the devices of this machine
  PATHWAYS_DEVICES       number of devices on this machine's CPU; default: as many as JAX would show
  PATHWAYS_WAIT          seconds to wait for the cluster and its devices; default: 30 for devices, 0 for a controller
  PATHWAYS_CONFIG        a file with lines such as devices = 8, for variables that are not set
  PATHWAYS_PLUGIN        path of the PJRT plugin; default: chosen automatically, see pathways doctor
  PATHWAYS_PLUGIN_DIRS   further directories to search for plugin packages, separated by colons
  PATHWAYS_LIBRARY       path of libpathways.so; default: the one in the package
  PATHWAYS_KEEP_MEMORY   false: return memory of CPU devices to the system as soon as an array is deleted
  PATHWAYS_TOKEN_FILE, PATHWAYS_TOKEN, PATHWAYS_TLS_CA, PATHWAYS_TLS_CERT, PATHWAYS_TLS_KEY
                         credentials for a cluster on other machines; see pathways options
"pathways options" lists the variables for the commands.

exit codes: 0 success, 1 failure (the message says why), 2 usage error, 130 stopped by a signal`

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:          "pathways",
		Short:        "one Python process drives the accelerators of many machines, with ordinary JAX",
		Long:         rootHelp,
		Version:      p.Version,
		SilenceUsage: true, SilenceErrors: true, SuggestionsMinimumDistance: 2,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknown(cmd, args[0])
			}
			cmd.SetOut(p.err)
			_ = cmd.Help() // it only prints
			return usage{errors.New("expected a command")}
		},
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		PersistentPreRunE: func(cmd *cobra.Command, args []string) error {
			if err := settle(cmd.Flags(), p.Lookup); err != nil {
				return usage{err}
			}
			return nil
		},
	}
	root.SetVersionTemplate("{{.Version}}\n") // as the command prints it
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage{fmt.Errorf("%w\n`%s --help` shows the usage", err, cmd.CommandPath())}
	})
	for name, short := range p.Elsewhere {
		root.AddCommand(&cobra.Command{Use: name, Short: short, Run: func(*cobra.Command, []string) {}})
	}
	root.SetHelpCommand(help())
	for _, cmd := range []*cobra.Command{p.controller(), p.worker(), p.up(), p.supervisor(), p.down(), p.status(),
		p.top(), p.why(), p.queue(), p.events(), p.tenants(), p.address(), p.token(), p.certs(), p.options(), p.version()} {
		explainArguments(cmd)
		root.AddCommand(cmd)
	}
	return root
}

// explainArguments has wrong arguments of a command, and of those below it, reported as wrong usage.
func explainArguments(cmd *cobra.Command) {
	if takes := cmd.Args; takes != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := takes(cmd, args); err != nil {
				return usage{fmt.Errorf("%w; expected `%s`\n`%s --help` shows the usage", err,
					strings.TrimSuffix(cmd.UseLine(), " [flags]"), cmd.CommandPath())}
			}
			return nil
		}
	}
	for _, below := range cmd.Commands() {
		explainArguments(below)
	}
}

// help returns the command that shows the help of another. Cobra's own answers an unknown one with the program's help.
func help() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "show the help of a command",
		Example: `  pathways help up
  pathways help tenants apply`,
		Long: "Prints what a command does, with examples and its flags; the same as `pathways COMMAND --help`.",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknown(cmd.Root(), strings.Join(args, " "))
			}
			about.InitDefaultHelpFlag() // cobra adds it when it runs a command, and this one does not run
			return about.Help()
		},
	}
}

// unknown returns the error for a command that does not exist, with those that the user may have meant.
func unknown(root *cobra.Command, name string) error {
	return usage{fmt.Errorf("unknown command %q; %s`pathways --help` lists the commands", name,
		meant(root.SuggestionsFor(name)))}
}

// meant suggests the commands that the user may have meant.
func meant(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "did you mean " + strings.Join(names, " or ") + "? "
}

func (p *program) options() *cobra.Command {
	return &cobra.Command{
		Use:   "options",
		Short: "list all options, with their environment variables, defaults and meanings",
		Example: `  pathways options
  pathways options | grep TLS`,
		Long: `Every option can be set by a flag, an environment variable, or a line of the file that --config names. Flags take
precedence over variables, and variables over the file. Scripts read the variables and the file that PATHWAYS_CONFIG
names.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "FLAG\tVARIABLE\tDEFAULT\tMEANING")
			for _, o := range options {
				flag := "--" + o.name
				if slices.Contains(ofScripts, o.name) {
					flag = "(scripts)"
				}
				fmt.Fprintf(w, "%s\t%s\t%v\t%s\n", flag, variable(o.name), o.value, o.meaning())
			}
			return w.Flush()
		},
	}
}

func (p *program) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version", Args: cobra.NoArgs,
		Long:    "Prints the version of the installed package.",
		Example: "  pathways version",
		RunE: func(*cobra.Command, []string) error {
			fmt.Fprintln(p.out, p.Version)
			return nil
		},
	}
}

// logger returns a logger to standard error, of the level that --log sets.
func (p *program) logger(s settings) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.text("log"))); err != nil {
		return nil, usage{status.New(status.InvalidArgument, "--log is %q; expected debug, info, warn or error",
			s.text("log"))}
	}
	return slog.New(slog.NewTextHandler(p.err, &slog.HandlerOptions{Level: level})), nil
}
