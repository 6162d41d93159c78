// Package command is the command line of Open Pathways: controllers, workers,
// whole clusters on one machine, and what people ask of them.
//
// The same commands are a plain Go program (core/cmd/pathways) and part of
// libpathways.so, where the Python package calls them; what differs is which
// drivers are linked in, and how a process starts another like itself.
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
	ExitWell    = 0
	ExitFailed  = 1   // something went wrong, and the error says what
	ExitUsage   = 2   // the command line was not understood
	ExitStopped = 130 // told to stop before it was done
)

// Env is what the program around the command line gives it.
type Env struct {
	// Self is the command that starts another process like this one, such as the
	// path of this program.
	Self []string
	// Kinds finds devices: name is the option --driver, count the option --devices (0
	// is not said).
	Kinds func(name string, count int) (device.Kind, error)
	// Handler makes a handler of XLA custom calls, which a client has registered, one
	// of this process; nil: it knows of none.
	Handler func(*wire.Handler) error
	// Versions are what the processes of a cluster must agree in, such as "jax".
	Versions map[string]string
	Version  string // of Pathways
	// Imported are the modules of --import that the program around has imported.
	Imported []string
	// Elsewhere are commands that the program around runs itself, with a line on
	// each, so that help lists them.
	Elsewhere map[string]string
	Out, Err  io.Writer
	Lookup    func(variable string) (string, bool)
}

// program is one call of the command line.
type program struct {
	Env
	out, err io.Writer
}

// usage marks an error of the command line itself.
type usage struct{ error }

// Main runs a command line, without the program's name, and gives the exit code.
func Main(ctx context.Context, args []string, env Env) int {
	if env.Lookup == nil {
		env.Lookup = os.LookupEnv
	}
	p := &program{Env: env, out: env.Out, err: env.Err}
	root := p.root()
	root.SetArgs(args)
	root.SetOut(p.out)
	root.SetErr(p.err)
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	return p.exit(ctx, root.ExecuteContext(ctx))
}

// exit says why a command has failed, if it has, and returns the exit code.
func (p *program) exit(ctx context.Context, err error) int {
	var wrong usage
	var child childExit
	switch {
	case err == nil:
		return ExitWell
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

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "pathways",
		Short: "one Python process drives the accelerators of many machines, with ordinary JAX",
		Long: `Open Pathways runs ordinary JAX on every accelerator of a cluster through one process. In a script, one line before
the first use of JAX is all: import pathways

In one process, on the devices of this machine:

  pathways doctor                            # what is here, and what is missing
  PATHWAYS_DEVICES=8 python train.py         # on a CPU, as many devices as you like

In several, on this machine:

  pathways up --workers 4 --devices 2        # eight devices in four worker processes
  export PATHWAYS_ADDRESS=$(pathways address)
  python train.py                            # JAX shows all eight
  pathways down

On several machines: pathways controller on one of them, pathways worker on each.

variables of scripts:
  PATHWAYS_ADDRESS       the cluster whose devices JAX shows; default: the devices of this machine
  PATHWAYS_DEVICES       number of devices of this machine; on a CPU, default: as JAX would show
  PATHWAYS_CONFIG        a file with lines such as devices = 8, for variables that are not set
  PATHWAYS_PLUGIN        path of the PJRT plugin to drive, instead of the one found
  PATHWAYS_PLUGIN_DIRS   further directories to look for plugin packages in, colon-separated
  PATHWAYS_LIBRARY       another libpathways.so than the one of the package
  PATHWAYS_TOKEN_FILE, PATHWAYS_TOKEN, PATHWAYS_TLS_CA, PATHWAYS_TLS_CERT, PATHWAYS_TLS_KEY
                         what a cluster on other machines asks for; see pathways options
Those of the commands are listed by pathways options.

exit codes: 0 success, 1 failure (the message says why), 2 usage error, 130 stopped by a signal`,
		Version:      p.Version,
		SilenceUsage: true, SilenceErrors: true, SuggestionsMinimumDistance: 2,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage{fmt.Errorf("unknown command %q; %s`pathways --help` lists the commands", args[0], meant(cmd.SuggestionsFor(args[0])))}
			}
			cmd.SetOut(p.err)
			_ = cmd.Help() // it only writes
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
		return usage{fmt.Errorf("%w\n`%s --help` says what it takes", err, cmd.CommandPath())}
	})
	for name, short := range p.Elsewhere {
		root.AddCommand(&cobra.Command{Use: name, Short: short, Run: func(*cobra.Command, []string) {}})
	}
	for _, cmd := range []*cobra.Command{p.controller(), p.worker(), p.up(), p.supervisor(), p.down(), p.status(), p.address(), p.certs(), p.options(), p.version()} {
		if takes := cmd.Args; takes != nil {
			cmd.Args = func(cmd *cobra.Command, args []string) error {
				if err := takes(cmd, args); err != nil {
					return usage{fmt.Errorf("%w\n`%s --help` says what it takes", err, cmd.CommandPath())}
				}
				return nil
			}
		}
		root.AddCommand(cmd)
	}
	return root
}

// meant says which commands somebody may have had in mind.
func meant(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "did you mean " + strings.Join(names, " or ") + "? "
}

func (p *program) options() *cobra.Command {
	return &cobra.Command{
		Use:   "options",
		Short: "list all options, their variables and what they mean",
		Long: `Every option is a flag, a variable, and a line of the file that --config names. What a flag says wins over the
variable, and the variable over the file. Scripts read variables and the file that PATHWAYS_CONFIG names.`,
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
		RunE: func(*cobra.Command, []string) error {
			fmt.Fprintln(p.out, p.Version)
			return nil
		},
	}
}

// logger writes to standard error what the option asks for.
func (p *program) logger(s settings) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.text("log"))); err != nil {
		return nil, usage{status.New(status.InvalidArgument, "--log is %q; expected debug, info, warn or error", s.text("log"))}
	}
	return slog.New(slog.NewTextHandler(p.err, &slog.HandlerOptions{Level: level})), nil
}
