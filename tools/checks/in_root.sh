#!/usr/bin/env bash
# in_root.sh ROOT PROGRAM ARGUMENTS… — runs a program with the libraries, Vulkan drivers and layers of another, newer
# system that lies in the folder ROOT (debootstrap makes one; packages mesa-vulkan-drivers, libvulkan1, spirv-tools,
# vulkan-validationlayers). A program without a slash is ROOT's own.
set -eu
root=$1 program=$2
shift 2
libraries=$root/usr/lib/x86_64-linux-gnu
case $program in */*) ;; *) program=$root/usr/bin/$program ;; esac
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
for kind in icd.d explicit_layer.d; do
    mkdir -p "$made/vulkan/$kind"
    for file in "$root/usr/share/vulkan/$kind"/lvp_icd*.json "$root/usr/share/vulkan/$kind"/*[Kk]hronos_validation.json; do
        [ -e "$file" ] || continue
        sed "s|\"library_path\": *\"[^\"]*/|\"library_path\": \"|; s|\"library_path\": *\"|&$libraries/|" "$file" \
            >"$made/vulkan/$kind/${file##*/}"
    done
done
unset VK_DRIVER_FILES
export XDG_DATA_DIRS=$made VK_ICD_FILENAMES VK_LAYER_PATH=$made/vulkan/explicit_layer.d
VK_ICD_FILENAMES=$(echo "$made"/vulkan/icd.d/*.json)
"$root/lib64/ld-linux-x86-64.so.2" --library-path "$libraries:/usr/lib/x86_64-linux-gnu" "$program" "$@"
