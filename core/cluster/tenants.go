package cluster

import (
	"io"
	"os"
	"sync/atomic"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
	"github.com/openpathways/pathways/core/tenant"
)

// tenantFile is a controller's file of tenants, as it was read last. Its methods may be called by any goroutine.
type tenantFile struct {
	path  string
	table atomic.Pointer[tenant.Table]
}

// readTenants reads the file of tenants at a path, nil for "".
//
// Errors: those of read.
func readTenants(path string) (*tenantFile, error) {
	if path == "" {
		return nil, nil
	}
	f := &tenantFile{path: path}
	_, err := f.read()
	return f, err
}

// read reads the file again. If it cannot be used, its previous contents hold.
//
// Errors: those of tenant.Parse; NOT_FOUND; PERMISSION_DENIED if others can change the file, or read a token.
func (f *tenantFile) read() (*tenant.Table, error) {
	text, err := readKept(f.path, othersWrite, "change the file of tenants")
	if err != nil {
		return nil, err
	}
	table, err := tenant.Parse(f.path, string(text), readTenantToken)
	if err != nil {
		return nil, err
	}
	f.table.Store(table)
	return table, nil
}

// of returns the name of the tenant that a token belongs to.
func (f *tenantFile) of(token []byte) (name string, ok bool) { return f.table.Load().OfToken(token) }

// IsTenantName returns why a text is not the name of a tenant, nil if it may be one.
//
// Errors: INVALID_ARGUMENT.
func IsTenantName(name string) error { return tenant.CheckName(name) }

// readTenantToken reads the token in a file that only its owner can read.
func readTenantToken(path string) (string, error) {
	text, err := readKept(path, othersRead|othersWrite, "read the token file")
	if err != nil {
		return "", err
	}
	return tokenIn(text, path, "write into it what `pathways token new` prints")
}

// What other users than its owner may do with a file.
const (
	othersRead  os.FileMode = 0o044
	othersWrite os.FileMode = 0o022
)

// maxKept bounds such a file in bytes: far more than a thousand tenants need.
const maxKept = 4 << 20

// readKept reads a regular file with none of the modes in others.
func readKept(path string, others os.FileMode, what string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, system.Error(err, "%s cannot be read", path)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, system.Error(err, "%s cannot be read", path)
	}
	if !info.Mode().IsRegular() {
		return nil, status.New(status.InvalidArgument, "%s is not a regular file (%v); name a file", path, info.Mode())
	}
	if info.Mode().Perm()&others != 0 {
		return nil, status.New(status.PermissionDenied, "other users can %s %s (%v); forbid it by chmod %03o",
			what, path, info.Mode(), info.Mode().Perm()&^others)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKept+1))
	if err == nil && len(text) > maxKept {
		return nil, status.New(status.InvalidArgument, "%s has more than %d bytes; is it the right file?", path, maxKept)
	}
	return text, system.Error(err, "%s cannot be read", path)
}
