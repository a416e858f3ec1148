//! Any text is a plan or has problems that can be shown, and what loads can be written and read
//! again. Seeds: `tests/corpus/plan`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| match crossfade::resource::load(text) {
    Ok((manifest, plan)) => {
        let again = crossfade::resource::Plan::of(manifest.identity, &manifest.spec);
        assert_eq!(again.as_ref(), Ok(&plan));
    }
    Err(problems) => assert!(!problems.to_string().is_empty()),
});
