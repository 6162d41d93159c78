package python

/*
#cgo CFLAGS: -I${SRCDIR}/../ffi
#include <stdlib.h>
#include "ffi.h"
*/
import "C"

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"unsafe"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/capi/drivers"
	"github.com/openpathways/pathways/capi/ffi"
	"github.com/openpathways/pathways/core/command"
	"github.com/openpathways/pathways/device"
	driver "github.com/openpathways/pathways/device/pjrt"
)

// around describes the caller of pathways_main.
type around struct {
	Self      []string          `json:"self"`      // the command that starts another process like it
	Versions  map[string]string `json:"versions"`  // what the processes of a cluster must agree in
	Imported  []string          `json:"imported"`  // the modules of --import
	Elsewhere map[string]string `json:"elsewhere"` // commands that the caller runs itself
}

//export pwGoMain
func pwGoMain(argc C.int, argv **C.char, environment *C.char) C.int {
	var a around
	if err := json.Unmarshal([]byte(C.GoString(environment)), &a); err != nil {
		fmt.Fprintln(os.Stderr, "pathways_main: the environment is not the JSON object that pathways.h describes:", err)
		return command.ExitUsage
	}
	var args []string
	for _, s := range unsafe.Slice(argv, argc) {
		args = append(args, C.GoString(s))
	}
	env := command.Env{
		Self: a.Self, Versions: a.Versions, Elsewhere: a.Elsewhere, Imported: a.Imported, Version: base.Version,
		Out: os.Stdout, Err: os.Stderr,
		Handler: ffi.Load,
		GPUs:    drivers.GPUs,
		Kinds: func(name string, count, first int) (device.Kind, error) {
			// The plugin gets the FFI handlers of this process, LAPACK among them.
			return drivers.Kind(drivers.Want{Name: name, Count: count, First: first, Dirs: drivers.Dirs(), OwnProcess: true,
				Loaded: func(p *driver.Plugin) {
					C.pw_ffi_attach((*C.PJRT_Api)(p.API()))
				}})
		},
	}
	// Go code that C has called is tied to the caller's thread: each time it blocks, two threads wake up where one would
	// do.
	code := make(chan int)
	go func() { code <- command.Main(context.Background(), args, env) }()
	return C.int(<-code)
}
