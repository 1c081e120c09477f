// Package main is a small S3 server for tests: versitygw's S3 API over a folder, with one account.
//
// server HOST:PORT FOLDER; the account is in S3_ACCESS and S3_SECRET, the region in S3_REGION.
// It prints one line as soon as it listens.
package main

import (
	"fmt"
	"log"
	"os"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3event"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: server HOST:PORT FOLDER")
	}
	address, folder := os.Args[1], os.Args[2]
	access, secret := os.Getenv("S3_ACCESS"), os.Getenv("S3_SECRET")
	backend, err := posix.New(folder, meta.XattrMeta{}, posix.PosixOpts{
		NewDirPerm:  0o755,
		Concurrency: 5000,
		// As S3: otherwise it refuses every copy, and so the renames of Hadoop's client.
		CopyObjectThreshold: 5 << 30,
	})
	if err != nil {
		log.Fatal(err)
	}
	events, err := s3event.InitEventSender(&s3event.EventConfig{})
	if err != nil {
		log.Fatal(err)
	}
	root := middlewares.RootUserConfig{Access: access, Secret: secret}
	account := auth.Account{Access: access, Secret: secret, Role: auth.RoleAdmin}
	server, err := s3api.New(
		backend, root, os.Getenv("S3_REGION"), auth.NewIAMServiceSingle(account), nil, nil, events, nil,
		s3api.WithQuiet(), s3api.WithKeepAlive(), s3api.WithHealth("/health"),
		s3api.WithConcurrencyLimiter(4096, 4096),
		s3api.WithOnListen(func() { fmt.Println("listening on", address) }),
	)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(server.ServeMultiPort([]string{address}))
}
