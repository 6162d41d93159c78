package cluster

/*
#include "ffi.h"
#include <stdlib.h>
*/
import "C"

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/capi/drivers"
	"github.com/openpathways/pathways/core/client"
	core "github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/command"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/host"
	driver "github.com/openpathways/pathways/device/pjrt"
	"github.com/openpathways/pathways/device/sim"
)

// Connect is the Dial of these addresses:
//
//	local:WxD            a cluster in this process, of W workers with D devices each
//	sim:WxD, sim:D       the same with simulated devices
//	tcp:… and unix:…     a controller
//
// Versions must agree with the controller's. A cluster in this process never has more workers than at its start, so a
// session of it cannot be elastic.
//
// Errors: INVALID_ARGUMENT for other addresses, RESOURCE_EXHAUSTED if there are too few devices, and the reason if the
// cluster cannot be reached.
func Connect(ctx context.Context, address string, want Want, versions map[string]string,
	notify client.Notify) (client.Cluster, error) {
	scheme, rest, _ := strings.Cut(address, ":")
	switch {
	case scheme == "tcp" || scheme == "unix":
		return connect(ctx, address, want, versions, notify)
	case want.Elastic:
		return nil, status.New(status.InvalidArgument, "no worker can join a cluster inside this process, %q; leave elastic "+
			"out, or name a controller by tcp:host:port or unix:/path", address)
	case scheme == "local":
		return startLocal(ctx, rest, want, notify)
	case scheme == "sim":
		return startSimulated(ctx, rest, want, notify)
	}
	return nil, status.New(status.InvalidArgument, "%q is not the address of a cluster; expected tcp:host:port or "+
		"unix:/path of a controller, local:WxD for W workers with D devices each in this process, or sim:WxD for "+
		"simulated ones", address)
}

// startLocal makes a cluster of this process's devices.
func startLocal(ctx context.Context, shape string, want Want, notify client.Notify) (client.Cluster, error) {
	workers, each, err := grid(shape)
	if err != nil {
		return nil, err
	}
	kind, err := drivers.Kind(drivers.Want{Count: each, Dirs: drivers.Dirs(), Loaded: func(p *driver.Plugin) {
		C.pw_ffi_attach((*C.PJRT_Api)(p.API())) // the handlers of this process are also the workers'
	}})
	if err != nil {
		return nil, err
	}
	var all []device.Driver
	for range workers {
		d, err := kind.Join(ctx, device.Membership{})
		if err != nil {
			closeAll(all)
			return nil, err
		}
		all = append(all, d)
	}
	return within(ctx, want, notify, all, func() {})
}

// startSimulated makes a cluster of simulated devices.
func startSimulated(ctx context.Context, shape string, want Want, notify client.Notify) (client.Cluster, error) {
	workers, each, err := grid(shape)
	if err != nil {
		return nil, err
	}
	kinds, island := make([]device.Kind, workers), sim.NewIsland(sim.Real, 1)
	for i := range kinds {
		kinds[i] = sim.Kind{Options: sim.Options{Devices: each, Island: island}}
	}
	all, leave, err := core.Join(ctx, kinds)
	if err != nil {
		return nil, err
	}
	return within(ctx, want, notify, all, leave)
}

// connect makes a session on a controller.
func connect(ctx context.Context, address string, want Want, versions map[string]string,
	notify client.Notify) (client.Cluster, error) {
	lookup, err := command.Lookup(variable)
	if err != nil {
		return nil, err
	}
	secret, err := core.SecretOf(lookup)
	if err != nil {
		return nil, err
	}
	alone, err := core.AloneOf(lookup)
	if err != nil {
		return nil, err
	}
	name, _ := os.Hostname()
	// Callbacks of events wait in C for Python's GIL. If Go has one processor, all else waits until its monitor takes it
	// from them (capi/lib/monitor.c): 1 to 5 ms of a call that takes 0.1 ms otherwise.
	giveBack := host.Second()
	c, err := core.Connect(ctx, core.ClientConfig{
		Address: address, Secret: secret, Name: fmt.Sprintf("%s:%d", name, os.Getpid()), Devices: want.Devices,
		Elastic: want.Elastic, Platforms: want.Platforms,
		Heartbeat: heartbeat, Silence: silence, Versions: versions, Software: "pathways " + base.Version, Alone: alone,
		Hurry: interrupted, Held: tellHeld, Moment: happened, Thread: base.Thread, Processor: base.Processor,
		Waits: func(why string) { heldLines.add(fmt.Sprintf("waits for the cluster at %s: %s", address, why)) },
	}, notify)
	if err != nil {
		giveBack()
		return nil, err
	}
	return inner{c, giveBack}, nil
}

// variable returns a variable of the process as it is now. A notebook sets some before it connects, such as whose token
// it shows; what Go's own lookup knows is the environment that the process was started with.
func variable(name string) (value string, set bool) {
	key := C.CString(name)
	defer C.free(unsafe.Pointer(key))
	v := C.getenv(key)
	if v == nil {
		return "", false
	}
	return C.GoString(v), true
}

// How often a client sends heartbeats, and how long its peers may be silent, where they do not ask for others.
const (
	heartbeat = time.Second
	silence   = 10 * time.Second
)

// maxDevices bounds a cluster in this process.
const maxDevices = 4096

// grid reads "WxD", or "D" for one worker.
func grid(text string) (workers, each int, err error) {
	workers = 1
	w, d, both := strings.Cut(text, "x")
	if !both {
		d = w
	} else if workers, err = strconv.Atoi(w); err != nil {
		workers = 0
	}
	if each, err = strconv.Atoi(d); err != nil || workers < 1 || each < 1 || workers > maxDevices/each {
		return 0, 0, status.New(status.InvalidArgument,
			"%q is not a number of workers and devices; expected WxD, such as 2x4 for two workers with four devices each, "+
				"of at most %d devices", text, maxDevices)
	}
	return workers, each, nil
}

// inner is a session on a cluster that ends with the session.
type inner struct {
	client.Cluster
	end func()
}

func (c inner) Close() error {
	err := c.Cluster.Close()
	c.end()
	return err
}

func closeAll(all []device.Driver) {
	for _, d := range all {
		_ = d.Close() // its errors were returned to those that waited
	}
}

// within makes a cluster in this process for one session, with these drivers, and calls closed when they are closed.
func within(ctx context.Context, want Want, notify client.Notify, all []device.Driver, closed func()) (client.Cluster,
	error) {
	local, err := core.InProcess{Drivers: all, Hurry: interrupted, Thread: base.Thread,
		Processor: base.Processor}.Start(ctx)
	end := func() {
		if local != nil {
			local.Close()
		}
		closeAll(all)
		closed()
	}
	if err != nil {
		end()
		return nil, err
	}
	c, err := local.ConnectAsking(ctx, &wire.Hello{Name: "embedded", Devices: uint32(want.Devices),
		Platforms: want.Platforms}, notify)
	if err != nil {
		end()
		return nil, err
	}
	return inner{c, end}, nil
}
