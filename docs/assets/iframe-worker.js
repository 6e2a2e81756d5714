// Browsers load no worker from a file. When a page is opened from disk, one in a hidden frame takes the place of the
// search's worker, so that no other host is asked for one. The theme looks for the name IFrameWorker.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const loaded = (source) =>
        new Promise((resolve, reject) => {
          const script = frame.contentDocument.createElement("script");
          script.onload = resolve;
          script.onerror = reject;
          script.src = source;
          frame.contentDocument.head.append(script);
        });
      inside.importScripts = (...sources) => sources.reduce((before, source) => before.then(() => loaded(source)), Promise.resolve());
      this.inside = inside;
      this.ready = loaded(url);
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })));
    }
    terminate() {}
  };
}
