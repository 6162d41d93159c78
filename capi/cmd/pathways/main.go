// Command pathways is the command line of Open Pathways as a plain Go program,
// for machines without Python.
//
// A worker for CPUs that is to run LAPACK or users' FFI handlers belongs under
// Python, which has them: there the same commands are in the package's script.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/openpathways/pathways/capi/drivers"
	"github.com/openpathways/pathways/core/command"
	"github.com/openpathways/pathways/device"
)

func main() {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pathways:", err)
		os.Exit(command.ExitFailed)
	}
	version := "development"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		version = info.Main.Version
	}
	os.Exit(command.Main(context.Background(), os.Args[1:], command.Env{
		Self: []string{self}, Version: version, Out: os.Stdout, Err: os.Stderr,
		GPUs: drivers.GPUs,
		Kinds: func(name string, count, first int) (device.Kind, error) {
			return drivers.Kind(drivers.Want{Name: name, Count: count, First: first, OwnProcess: true})
		},
	}))
}
