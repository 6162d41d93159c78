package pjrt

// #include "driver.h"
import "C"

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/host"
)

// ClientOptions are the options of Create.
type ClientOptions struct {
	// Devices is the number of devices; 0 leaves it to the plugin. It becomes the
	// plugin's own option: cpu_device_count, or visible_devices for CUDA.
	Devices int
	// First is the index of the first GPU to use; other kinds ignore it.
	First int
	// Values are options of the plugin, by name: string, bool, any integer, []int64, float32 or float64. For an option
	// that the plugin does not know, Create returns the plugin's error.
	Values map[string]any
	// Store is the rendezvous of an island with several members, or nil.
	Store device.KeyValues
	// OwnProcess is for a process that only runs computations, such as a worker: its memory is managed for them alone.
	OwnProcess bool
}

// Client is a client of a plugin. It is a device.Driver.
type Client struct {
	plugin            *Plugin
	raw               *C.PJRT_Client
	platform, version string
	devices           []device.Device
	handles           []deviceHandles
	numbers           []int // of the devices: 0, 1, 2 …
	local             map[*C.PJRT_Device]int
	store             *store
	options           ClientOptions
	stages            stages
	giveBack          func()                  // returns its processors; nil if it has none
	stopKeeping       func()                  // nil if no memory is kept
	service           atomic.Pointer[service] // nil until ServeCollectives
	refusing          atomic.Pointer[service] // for programs with collectives of a client without it
	// By device: bytes of buffers in its default memory, for plugins that keep no statistics.
	inUse []atomic.Int64

	// What keeps the plugin's client alive: the client itself until Close, each open buffer, executable and context, each
	// event that has not fired, and each call in progress.
	refs atomic.Int64
	open atomic.Int64 // buffers, executables, contexts and incoming arrays

	work  atomic.Int64 // events of work that have not fired
	stirs stirrer

	slices   sync.Once // guards noSlices
	noSlices bool      // the plugin cannot read a part of a buffer

	mu     sync.Mutex
	closed atomic.Bool // written under mu, so that hold and Close agree
	quiet  sync.Cond   // signaled after closed is set, when work or refs fall; uses mu
}

// deviceHandles are the plugin's handles of a device, which live as long as the client.
type deviceHandles struct {
	raw      *C.PJRT_Device
	memories []*C.PJRT_Memory // as in device.Device.Memories
}

// Create makes a client. If the plugin refuses, it returns the plugin's error.
func (p *Plugin) Create(o ClientOptions) (*Client, error) {
	options, err := p.options(o)
	if err != nil {
		return nil, err
	}
	defer C.pwdrv_options_free(options)
	c := &Client{plugin: p, options: o}
	c.quiet.L = &c.mu
	c.refs.Store(1)
	var callbacks C.pwdrv_store
	if o.Store != nil {
		c.store = newStore(o.Store)
		callbacks = C.pwdrv_go_store(C.uintptr_t(c.store.handle))
	}
	if err := p.check(C.pwdrv_client_create(p.api, options, callbacks, &c.raw)); err != nil {
		c.store.close()
		return nil, status.Wrap(err, "plugin %s makes no client", p.path)
	}
	if err := c.describe(); err != nil {
		c.Close() // nothing is open: no error
		return nil, err
	}
	if have := len(c.devices); o.Devices > 0 && have != o.Devices { // CUDA leaves out those that are not there
		c.Close()
		return nil, status.New(status.ResourceExhausted, "%s asked for, and this machine has %d: ask for at most so many",
			status.Count(o.Devices, p.Kind()+" device"), have)
	}
	c.giveBack = host.Spare(len(c.devices)) // each device may have a goroutine that waits in the plugin
	if c.platform == "cpu" && len(c.devices) > 0 {
		C.pwdrv_teach_malloc()
		c.stopKeeping = p.keepBlocks(o.OwnProcess)
		c.stirs.armed.Store(true)
		c.stirs.timer = time.AfterFunc(firstStir, c.look) // there is nothing to look at yet
	}
	return c, nil
}

// cpuDevices is the CPU plugins' option for the number of devices. Some of them end the process if its type or value is
// not what they expect.
const (
	cpuDevices    = "cpu_device_count"
	maxCPUDevices = 1 << 14
)

// countDevices reads a value of cpuDevices. Digits in a string are accepted too, since options that come through the
// environment are all strings.
func countDevices(v any) (int64, error) {
	var n int64
	switch v := v.(type) {
	case int:
		n = int64(v)
	case int32:
		n = int64(v)
	case int64:
		n = v
	case string:
		var err error
		if n, err = strconv.ParseInt(v, 10, 64); err != nil {
			return 0, status.New(status.InvalidArgument, "option %s is %q: use a number", cpuDevices, v)
		}
	default:
		return 0, status.New(status.InvalidArgument, "option %s is a %T: use an integer", cpuDevices, v)
	}
	if n < 1 || n > maxCPUDevices {
		return 0, status.New(status.InvalidArgument, "option %s is %d: use 1 to %d", cpuDevices, n, maxCPUDevices)
	}
	return n, nil
}

// options builds the plugin's create options in C memory.
func (p *Plugin) options(o ClientOptions) (*C.pwdrv_options, error) {
	values := map[string]any{}
	if p.Kind() == "cuda" {
		var err error
		if values, err = cudaOptions(os.Getenv); err != nil {
			return nil, err
		}
	}
	maps.Copy(values, o.Values)
	if o.Devices < 0 {
		return nil, status.New(status.InvalidArgument, "%d devices were asked for: ask for one or more", o.Devices)
	}
	if o.Devices > 0 {
		switch p.Kind() {
		case "cpu":
			values[cpuDevices] = o.Devices
		case "cuda":
			values["visible_devices"] = visible(o.First, o.Devices)
		default:
			return nil, status.New(status.InvalidArgument,
				"the number of %s devices cannot be chosen: leave it out, and the plugin takes what is there", p.Kind())
		}
	}
	if v, ok := values[cpuDevices]; ok {
		n, err := countDevices(v)
		if err != nil {
			return nil, err
		}
		values[cpuDevices] = n
	}
	options := C.pwdrv_options_new(C.size_t(len(values)))
	if options == nil {
		return nil, short(int64(len(values)) * int64(unsafe.Sizeof(C.PJRT_NamedValue{})))
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if err := addOption(options, key, values[key]); err != nil {
			C.pwdrv_options_free(options)
			return nil, err
		}
	}
	return options, nil
}

// visible returns the indices of so many devices.
func visible(first, count int) []int64 {
	all := make([]int64, count)
	for i := range all {
		all[i] = int64(first + i)
	}
	return all
}

// addOption adds one option of the plugin's.
func addOption(options *C.pwdrv_options, key string, value any) error {
	name, size := chars(key)
	var added C.bool
	switch v := value.(type) {
	case string:
		value, n := chars(v)
		added = C.pwdrv_options_string(options, name, size, value, n)
	case bool:
		added = C.pwdrv_options_bool(options, name, size, C.bool(v))
	case int:
		added = C.pwdrv_options_int(options, name, size, C.int64_t(v))
	case int32:
		added = C.pwdrv_options_int(options, name, size, C.int64_t(v))
	case int64:
		added = C.pwdrv_options_int(options, name, size, C.int64_t(v))
	case float32:
		added = C.pwdrv_options_float(options, name, size, C.float(v))
	case float64:
		added = C.pwdrv_options_float(options, name, size, C.float(v))
	case []int64:
		added = C.pwdrv_options_ints(options, name, size, (*C.int64_t)(unsafe.SliceData(v)), C.size_t(len(v)))
	default:
		return status.New(status.InvalidArgument,
			"option %s is a %T: use a string, bool, integer, float or []int64", key, v)
	}
	if !added {
		return short(int64(len(key)))
	}
	return nil
}

// describe reads what does not change during the client's life.
func (c *Client) describe() error {
	p := c.plugin
	var name, version C.pwdrv_bytes
	if err := p.check(C.pwdrv_client_platform(p.api, c.raw, &name, &version)); err != nil {
		return err
	}
	c.platform, c.version = strings.ToLower(goString(name)), goString(version)
	var list **C.PJRT_Device
	var count C.size_t
	if err := p.check(C.pwdrv_client_devices(p.api, c.raw, &list, &count)); err != nil {
		return err
	}
	c.local = make(map[*C.PJRT_Device]int, count)
	c.inUse = make([]atomic.Int64, count)
	for i, raw := range unsafe.Slice(list, count) {
		d, h, err := c.describeDevice(raw)
		if err != nil {
			return err
		}
		c.devices = append(c.devices, d)
		c.numbers = append(c.numbers, len(c.handles))
		c.handles = append(c.handles, h)
		c.local[raw] = i
	}
	return nil
}

func (c *Client) describeDevice(raw *C.PJRT_Device) (d device.Device, h deviceHandles, err error) {
	p := c.plugin
	var id C.int
	var kind C.pwdrv_bytes
	if err = p.check(C.pwdrv_device_describe(p.api, raw, &id, &kind)); err != nil {
		return
	}
	d.ID, d.Kind = int(id), goString(kind)
	h.raw = raw
	var attributes *C.PJRT_NamedValue
	var number C.size_t
	if err := p.check(C.pwdrv_device_attributes(p.api, raw, &attributes, &number)); err == nil { // old plugins have none
		d.Attributes = namedValues(attributes, number)
	}
	var list **C.PJRT_Memory
	var count C.size_t
	var fallback *C.PJRT_Memory
	var text, debug C.pwdrv_bytes
	if err = p.check(C.pwdrv_device_memories(p.api, raw, &list, &count, &fallback)); err != nil {
		return
	}
	for i, memory := range unsafe.Slice(list, count) {
		if err = p.check(C.pwdrv_memory_describe(p.api, memory, &id, &kind, &text, &debug)); err != nil {
			return
		}
		d.Memories = append(d.Memories,
			device.Memory{ID: int(id), Kind: goString(kind), Text: goString(text), Debug: goString(debug)})
		h.memories = append(h.memories, memory)
		if memory == fallback {
			d.Default = i
		}
	}
	return
}

// Raw returns the plugin's PJRT_Client*. It is valid until Close.
func (c *Client) Raw() unsafe.Pointer { return unsafe.Pointer(c.raw) }

// Platform returns the plugin's platform in lower case, such as "cpu".
func (c *Client) Platform() string { return c.platform }

// PlatformVersion returns the plugin's version text.
func (c *Client) PlatformVersion() string { return c.version }

// Devices returns the addressable devices. The slice is shared and must not be changed.
func (c *Client) Devices() []device.Device { return c.devices }

// hold keeps the plugin's client alive until drop. It fails once Close has begun.
func (c *Client) hold() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return status.New(status.FailedPrecondition, "the %s client is closed", c.platform)
	}
	c.refs.Add(1)
	return nil
}

func (c *Client) drop() {
	switch n := c.refs.Add(-1); {
	case n == 0:
		// This may be a thread of the plugin, on which its client cannot be destroyed.
		go c.destroy()
	case n == 1:
		c.wake()
	}
}

// wake makes Close look again.
func (c *Client) wake() {
	if c.closed.Load() {
		c.mu.Lock()
		c.quiet.Broadcast()
		c.mu.Unlock()
	}
}

func (c *Client) destroy() {
	if c.giveBack != nil {
		c.giveBack()
	}
	c.service.Load().close()
	c.refusing.Load().close()
	// There is no caller left to return an error to.
	_ = c.plugin.check(C.pwdrv_client_destroy(c.plugin.api, c.raw))
	c.store.close()
	if c.stopKeeping != nil {
		c.stopKeeping()
	}
}

// opened and closedOne count the buffers, executables and contexts that are
// open. The caller of opened holds the client.
func (c *Client) opened() {
	c.open.Add(1)
	c.refs.Add(1)
}

func (c *Client) closedOne() {
	c.open.Add(-1)
	c.drop()
}

// Close waits until the work in flight is done, and frees the client. If buffers or executables are still open it
// returns an error, and the client is freed with the last of them.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed.Load() {
		c.mu.Unlock()
		return nil
	}
	c.closed.Store(true)
	c.mu.Unlock()
	c.stages.close()
	c.mu.Lock()
	// With nothing open, everything that still holds the client drops it in time. An open buffer may hold it, and host
	// memory, without end.
	for c.work.Load() > 0 || c.open.Load() == 0 && c.refs.Load() > 1 {
		c.quiet.Wait()
	}
	c.mu.Unlock()
	open := c.open.Load()
	if c.refs.Add(-1) == 0 {
		c.destroy()
	}
	if open > 0 {
		return status.New(status.FailedPrecondition,
			"the %s client was closed before %d of its buffers and executables: close those first", c.platform, open)
	}
	return nil
}
