// Package main is a small server of Google's storage for tests: fake-gcs-server over a folder.
//
// server HOST:PORT FOLDER
//
// Rust's object_store makes three requests of the XML API that fake-gcs-server lacks: PUT on
// condition of a generation, DELETE, and a list with start-after and pages. They are mapped here.
package main

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

const pageObjects = 1000

type object struct {
	Key, LastModified, ETag string
	Generation, Size        int64
}

type folder struct{ Prefix string }

type listing struct {
	XMLName               xml.Name `xml:"ListBucketResult"`
	Name, Prefix          string
	IsTruncated           bool
	NextContinuationToken string `xml:",omitempty"`
	Contents              []object
	CommonPrefixes        []folder
}

type front struct {
	address string
	server  *fakestorage.Server
	behind  http.Handler
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: server HOST:PORT FOLDER")
	}
	address := os.Args[1]
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{
		NoListener: true, StorageRoot: os.Args[2], PublicHost: address, ExternalURL: "http://" + address,
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(address, front{address, server, server.HTTPHandler()}))
}

// ServeHTTP maps what fake-gcs-server lacks, and hands on the rest.
func (f front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	query := r.URL.Query()
	r.Host = f.address // it may have come through another front, and is routed by the host
	switch {
	case bucket == "storage" || bucket == "upload" || bucket == "download" || bucket == "":
		f.behind.ServeHTTP(w, r)
	case r.Method == http.MethodPut && key != "" && !query.Has("uploadId") && !query.Has("X-Goog-Algorithm"):
		f.put(w, r, bucket, key)
	case r.Method == http.MethodDelete && key != "":
		f.remove(w, bucket, key)
	case r.Method == http.MethodGet && key == "":
		f.list(w, bucket, query)
	default:
		f.behind.ServeHTTP(w, r)
	}
}

func (f front) put(w http.ResponseWriter, r *http.Request, bucket, key string) {
	query := url.Values{"uploadType": {"media"}, "name": {key}}
	if generation := r.Header.Get("X-Goog-If-Generation-Match"); generation != "" {
		query.Set("ifGenerationMatch", generation)
	}
	request := httptest.NewRequest(http.MethodPost, "/upload/storage/v1/b/"+bucket+"/o?"+query.Encode(), r.Body)
	request.Header.Set("Content-Type", "application/octet-stream")
	answer := httptest.NewRecorder()
	f.behind.ServeHTTP(answer, request)
	var made struct{ Generation, Etag string }
	if answer.Code == http.StatusOK && json.Unmarshal(answer.Body.Bytes(), &made) == nil {
		w.Header().Set("X-Goog-Generation", made.Generation)
		w.Header().Set("ETag", quoted(made.Etag))
	}
	if answer.Code == http.StatusNotFound {
		refuse(w, answer.Code, "NoSuchBucket", "The specified bucket does not exist.")
		return
	}
	w.WriteHeader(answer.Code)
}

func (f front) remove(w http.ResponseWriter, bucket, key string) {
	request := httptest.NewRequest(http.MethodDelete, "/storage/v1/b/"+bucket+"/o/"+url.PathEscape(key), nil)
	answer := httptest.NewRecorder()
	f.behind.ServeHTTP(answer, request)
	if answer.Code == http.StatusOK {
		answer.Code = http.StatusNoContent
	}
	w.WriteHeader(answer.Code)
}

func (f front) list(w http.ResponseWriter, bucket string, query url.Values) {
	most, _ := strconv.Atoi(query.Get("max-keys"))
	if most <= 0 || most > pageObjects {
		most = pageObjects
	}
	after := max(query.Get("start-after"), query.Get("continuation-token"))
	objects, prefixes, err := f.server.ListObjectsWithOptions(bucket, fakestorage.ListOptions{
		Prefix: query.Get("prefix"), Delimiter: query.Get("delimiter"),
	})
	if err != nil {
		refuse(w, http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist.")
		return
	}
	page := listing{Name: bucket, Prefix: query.Get("prefix")}
	for _, o := range objects {
		if o.Name <= after {
			continue
		}
		if len(page.Contents) == most {
			page.IsTruncated, page.NextContinuationToken = true, page.Contents[most-1].Key
			break
		}
		page.Contents = append(page.Contents, object{
			o.Name, o.Updated.UTC().Format(time.RFC3339Nano), quoted(o.Etag), o.Generation, o.Size,
		})
	}
	for _, prefix := range prefixes {
		page.CommonPrefixes = append(page.CommonPrefixes, folder{prefix})
	}
	w.Header().Set("Content-Type", "application/xml")
	fmt.Fprint(w, xml.Header)
	_ = xml.NewEncoder(w).Encode(page)
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "%s<Error><Code>%s</Code><Message>%s</Message></Error>", xml.Header, code, message)
}

func quoted(etag string) string {
	return strconv.Quote(strings.Trim(etag, `"`))
}
