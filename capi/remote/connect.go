package remote

/*
#include "ffi.h"
*/
import "C"

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/openpathways/pathways/capi/drivers"
	"github.com/openpathways/pathways/capi/pjrt"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
	driver "github.com/openpathways/pathways/device/pjrt"
	"github.com/openpathways/pathways/device/sim"
)

// Connect is the Dial of addresses:
//
//	local:WxD            a cluster in this process, of W workers with D devices each
//	sim:WxD, sim:D       the same with simulated devices
//	tcp:… and unix:…     a controller
//
// Versions is what must agree with a controller's.
//
// Errors: INVALID_ARGUMENT for another address, and why the cluster cannot be
// reached.
func Connect(ctx context.Context, address string, versions map[string]string, notify client.Notify) (client.Cluster, error) {
	scheme, rest, _ := strings.Cut(address, ":")
	switch scheme {
	case "local":
		workers, each, err := grid(rest)
		if err != nil {
			return nil, err
		}
		return within(ctx, notify, workers, func(int) (device.Driver, error) {
			return drivers.Open(ctx, "auto", each, pjrt.PluginDirs(), func(p *driver.Plugin) {
				C.pw_ffi_attach((*C.PJRT_Api)(p.API())) // the handlers of this process are the workers' too
			})
		})
	case "sim":
		workers, each, err := grid(rest)
		if err != nil {
			return nil, err
		}
		options := sim.Options{Devices: each, Island: sim.NewIsland(sim.Real, 1)}
		epoch := &rendezvous{values: map[string][]byte{}}
		epoch.changed.L = &epoch.mu
		return within(ctx, notify, workers, func(i int) (device.Driver, error) {
			return sim.Kind{Options: options}.Join(ctx, device.Membership{Epoch: 1, Node: i, Nodes: workers, Store: epoch})
		})
	case "tcp", "unix":
		secret, err := cluster.SecretOf(address, os.LookupEnv)
		if err != nil {
			return nil, err
		}
		host, _ := os.Hostname()
		return cluster.Connect(ctx, cluster.ClientConfig{
			Address: address, Secret: secret, Name: fmt.Sprintf("%s:%d", host, os.Getpid()),
			Heartbeat: heartbeat, Silence: silence, Versions: versions, Software: "pathways " + pjrt.Version,
		}, notify)
	}
	return nil, status.New(status.InvalidArgument, "%q is no address of a cluster; expected tcp:host:port or unix:/path of a controller, local:WxD for W workers with D devices each in this process, or sim:WxD for simulated ones", address)
}

// How often a client says that it lives, and how long the others may be silent.
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
		return 0, 0, status.New(status.InvalidArgument, "%q are no workers and devices; expected WxD, such as 2x4 for two workers with four devices each, of at most %d devices", text, maxDevices)
	}
	return workers, each, nil
}

// inner is a session on a cluster that ends with it.
type inner struct {
	client.Cluster
	end func()
}

func (c inner) Close() error {
	err := c.Cluster.Close()
	c.end()
	return err
}

// within makes a cluster in this process for one session.
func within(ctx context.Context, notify client.Notify, workers int, open func(i int) (device.Driver, error)) (client.Cluster, error) {
	all, errs := make([]device.Driver, workers), make([]error, workers)
	var opening sync.WaitGroup
	for i := range all { // members of an epoch wait for each other
		opening.Go(func() { all[i], errs[i] = open(i) })
	}
	opening.Wait()
	closeAll := func() {
		for _, d := range all {
			if d != nil {
				_ = d.Close() // what it had to say was said to who waited
			}
		}
	}
	for _, err := range errs {
		if err != nil {
			closeAll()
			return nil, err
		}
	}
	local, err := cluster.InProcess{Drivers: all}.Start(ctx)
	if err != nil {
		closeAll()
		return nil, err
	}
	end := func() {
		local.Close()
		closeAll()
	}
	c, err := local.Connect(ctx, "door", notify)
	if err != nil {
		end()
		return nil, err
	}
	return inner{c, end}, nil
}

// rendezvous is the store of an epoch whose members are all here.
type rendezvous struct {
	mu      sync.Mutex
	changed sync.Cond
	values  map[string][]byte // guarded by mu
}

func (r *rendezvous) Put(_ context.Context, key string, value []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.values[key] = value
	r.changed.Broadcast()
	return nil
}

func (r *rendezvous) Get(ctx context.Context, key string) ([]byte, error) {
	stop := context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.changed.Broadcast()
	})
	defer stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.values[key] == nil {
		if err := ctx.Err(); err != nil {
			return nil, status.New(status.Cancelled, "waiting for %s of an epoch: %w", key, err)
		}
		r.changed.Wait()
	}
	return r.values[key], nil
}
