"""vulkan_headers.py — src/drivers/vulkan.h says of Vulkan what the vendors' header says: numbers, structures, functions.

Numbers and structures are compared by a C program of static assertions, functions word by word. Structures correspond
field by field in their order; those that the driver reads in part correspond in the fields that STRUCTURES names.
Skipped where vulkan/vulkan_core.h is not installed (package libvulkan-dev). What a header is too old for is left out, and
named; TRUNNION_VULKAN_INCLUDE is the folder of another one.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OURS = ROOT / "src/drivers/vulkan.h"
INCLUDE = pathlib.Path(os.environ.get("TRUNNION_VULKAN_INCLUDE", "/usr/include"))
THEIRS = INCLUDE / "vulkan/vulkan_core.h"

# Ours: theirs, and which field stands for which where not all do, in order.
STRUCTURES = {
    "vk_chain": ("VkBaseOutStructure", {}),
    "vk_application": ("VkApplicationInfo", None),
    "vk_instance_info": ("VkInstanceCreateInfo", None),
    "vk_limits": ("VkPhysicalDeviceLimits", {
        "storage_range": "maxStorageBufferRange", "allocations": "maxMemoryAllocationCount",
        "stage_storage": "maxPerStageDescriptorStorageBuffers", "stage_resources": "maxPerStageResources",
        "set_storage": "maxDescriptorSetStorageBuffers", "shared_memory": "maxComputeSharedMemorySize",
        "groups": "maxComputeWorkGroupCount", "group_items": "maxComputeWorkGroupInvocations",
        "group_size": "maxComputeWorkGroupSize", "storage_alignment": "minStorageBufferOffsetAlignment",
        "times": "timestampComputeAndGraphics", "time_unit": "timestampPeriod"}),
    "vk_properties": ("VkPhysicalDeviceProperties", None),
    "vk_properties2": ("VkPhysicalDeviceProperties2", None),
    "vk_identity": ("VkPhysicalDeviceIDProperties", {
        "device_uuid": "deviceUUID", "driver_uuid": "driverUUID", "luid": "deviceLUID"}),
    "vk_pci": ("VkPhysicalDevicePCIBusInfoPropertiesEXT", None),
    "vk_driver": ("VkPhysicalDeviceDriverProperties", None),
    "vk_subgroup": ("VkPhysicalDeviceSubgroupProperties", None),
    "vk_largest": ("VkPhysicalDeviceMaintenance3Properties", None),
    "vk_float_controls": ("VkPhysicalDeviceFloatControlsProperties", {
        "independent": "denormBehaviorIndependence", "keeps_specials": "shaderSignedZeroInfNanPreserveFloat16",
        "keeps_denormals": "shaderDenormPreserveFloat16", "rounds_to_even": "shaderRoundingModeRTEFloat16"}),
    "vk_memory": ("VkPhysicalDeviceMemoryProperties", {
        "type_count": "memoryTypeCount", "types": "memoryTypes", "heap_count": "memoryHeapCount",
        "heaps": "memoryHeaps"}),
    "vk_memory2": ("VkPhysicalDeviceMemoryProperties2", None),
    "vk_budget": ("VkPhysicalDeviceMemoryBudgetPropertiesEXT", None),
    "vk_queue_family": ("VkQueueFamilyProperties", {"flags": "queueFlags", "count": "queueCount",
                                                    "time_bits": "timestampValidBits"}),
    "vk_extension": ("VkExtensionProperties", None),
    "vk_features": ("VkPhysicalDeviceFeatures2", {
        "f64": "features.shaderFloat64", "i64": "features.shaderInt64", "i16": "features.shaderInt16"}),
    "vk_storage_16": ("VkPhysicalDevice16BitStorageFeatures", None),
    "vk_storage_8": ("VkPhysicalDevice8BitStorageFeatures", None),
    "vk_float16_int8": ("VkPhysicalDeviceShaderFloat16Int8Features", None),
    "vk_sizes": ("VkPhysicalDeviceSubgroupSizeControlProperties", None),
    "vk_size_control": ("VkPhysicalDeviceSubgroupSizeControlFeatures", None),
    "vk_size": ("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", None),
    "vk_memory_model": ("VkPhysicalDeviceVulkanMemoryModelFeatures", None),
    "vk_matrix": ("VkCooperativeMatrixPropertiesKHR", None),
    "vk_bfloat_16": ("VkPhysicalDeviceShaderBfloat16FeaturesKHR", None),
    "vk_matrices": ("VkPhysicalDeviceCooperativeMatrixFeaturesKHR", None),
    "vk_queue_info": ("VkDeviceQueueCreateInfo", None),
    "vk_device_info": ("VkDeviceCreateInfo", None),
    "vk_buffer_info": ("VkBufferCreateInfo", None),
    "vk_requirements": ("VkMemoryRequirements", None),
    "vk_allocate_info": ("VkMemoryAllocateInfo", None),
    "vk_plain_info": ("VkCommandPoolCreateInfo", None),
    "vk_query_pool_info": ("VkQueryPoolCreateInfo", None),
    "vk_commands_info": ("VkCommandBufferAllocateInfo", None),
    "vk_begin_info": ("VkCommandBufferBeginInfo", None),
    "vk_barrier": ("VkMemoryBarrier", None),
    "vk_region": ("VkBufferCopy", None),
    "vk_submit_info": ("VkSubmitInfo", None),
    "vk_binding": ("VkDescriptorSetLayoutBinding", None),
    "vk_set_layout_info": ("VkDescriptorSetLayoutCreateInfo", None),
    "vk_pool_size": ("VkDescriptorPoolSize", None),
    "vk_set_pool_info": ("VkDescriptorPoolCreateInfo", None),
    "vk_set_info": ("VkDescriptorSetAllocateInfo", None),
    "vk_range": ("VkDescriptorBufferInfo", None),
    "vk_write": ("VkWriteDescriptorSet", None),
    "vk_pipeline_layout_info": ("VkPipelineLayoutCreateInfo", None),
    "vk_data_info": ("VkShaderModuleCreateInfo", None),
    "vk_stage_info": ("VkPipelineShaderStageCreateInfo", None),
    "vk_pipeline_info": ("VkComputePipelineCreateInfo", None),
}
# One of ours may stand for several of theirs that look alike.
ALIKE = {"VkFenceCreateInfo": "VkCommandPoolCreateInfo", "VkPipelineCacheCreateInfo": "VkShaderModuleCreateInfo"}
SHORTER = {"VkFenceCreateInfo"}  # what ours has more lies in what the compiler fills up


def is_known(theirs, name):
    return re.search(r"\b" + name + r"\b", theirs) is not None


def numbers_of(ours):
    """(the vendors' name, our value) of every number."""
    return re.findall(r"^    X\(\w+, (VK_\w+), (\w+|-\d+)\)", ours, re.M)


def known_structures(theirs):
    return {name: row for name, row in STRUCTURES.items() if is_known(theirs, row[0])}


def unknown_names(ours, theirs):
    """What of ours this header has not."""
    functions = ["vk" + name for name in re.findall(r"X\((\w+),\s*(?:int32_t|void),", ours)]
    names = [name for name, _ in numbers_of(ours)] + [row[0] for row in STRUCTURES.values()] + functions
    return [name for name in names if not is_known(theirs, name)]


def fields_of(text, name):
    """The fields of a structure, in order."""
    body = re.search(r"typedef struct " + name + r" \{(.*?)\n\} ?" + name + ";", text, re.S)
    if not body:
        sys.exit(f"failed: no structure {name}")
    body = re.sub(r"/\*.*?\*/|//[^\n]*", "", body[1], flags=re.S)
    out = []
    for declaration in body.split(";"):
        for part in declaration.split(","):
            found = re.search(r"(\w+)\s*(\[[\w\[\]\s]*\])?\s*$", part)
            if found and part.strip():
                out.append(found[1])
    return out


def pairs_of(ours, theirs, name):
    """(our field, their field) of a structure."""
    vendor, some = STRUCTURES[name]
    if some is not None:
        return list(some.items())
    mine, yours = fields_of(ours, name), fields_of(theirs, vendor)
    if mine[0] == "head":
        mine[:1] = ["head.kind", "head.next"]
    if len(mine) != len(yours):
        sys.exit(f"failed: {name} has {len(mine)} fields, {vendor} {len(yours)}")
    return list(zip(mine, yours))


def program(ours, theirs):
    lines = ["#define VK_USE_64_BIT_PTR_DEFINES 0", "#include <vulkan/vulkan_core.h>", '#include "drivers/vulkan.h"',
             "#define SAME(a, f, b, g) _Static_assert(offsetof(a, f) == offsetof(b, g) && sizeof((a){0}.f) == "
             'sizeof((b){0}.g), #a "." #f " is not " #b "." #g);']
    for name, value in numbers_of(ours):
        if is_known(theirs, name):
            lines.append(f'_Static_assert((long long)({name}) == ({value}), "{name}");')
    for name, (vendor, some) in known_structures(theirs).items():
        lines.append(f'_Static_assert(sizeof({name}) == sizeof({vendor}), "{name}");')
        for a, b in pairs_of(ours, theirs, name):
            several = name == "vk_float_controls" or (name == "vk_memory" and a in ("types", "heaps"))
            if several or (name == "vk_limits" and a in ("groups", "group_size")):
                lines.append(f'_Static_assert(offsetof({name}, {a}) == offsetof({vendor}, {b}), "{name}.{a}");')
            else:
                lines.append(f"SAME({name}, {a}, {vendor}, {b})")
    for name, same in ALIKE.items():
        if name not in SHORTER:
            for a, b in zip(fields_of(theirs, name), fields_of(theirs, same)):
                lines.append(f"SAME({name}, {a}, {same}, {b})")
        lines.append(f'_Static_assert(sizeof({name}) == sizeof({same}), "{name}");')
    return "\n".join(lines + ["int main(void) { return 0; }"])


def kind_of(parameter, handles):
    """What a parameter is to a caller: (its size and class, what it points to)."""
    words = re.sub(r"\bconst\b|\bstruct\b|\bVKAPI_PTR\b", " ", parameter)
    stars = words.count("*")
    base = re.match(r"\s*(\w+)", words)[1]
    ours = {name: vendor for name, (vendor, _) in STRUCTURES.items()}
    base = ALIKE.get(ours.get(base, base), ours.get(base, base))
    if base in handles:
        base, more = ("void", 1) if handles[base] else ("uint64_t", 0)
        stars += more
    elif base in ("VkDeviceSize", "VkSemaphore"):
        base = "uint64_t"
    elif base == "VkAllocationCallbacks" or (stars and base.startswith("Vk") and base not in
                                              [vendor for vendor, _ in STRUCTURES.values()]):
        base = "void"  # never looked at
    elif base.startswith("Vk") and not stars:
        base = "uint32_t"  # enumerations, flags
    return base.replace("int32_t", "uint32_t").replace("uuint", "uint"), stars


def parameters_of(text):
    return [p.strip() for p in text.strip().split(",") if p.strip() and p.strip() != "void"]


def compare_calls(ours, theirs):
    handles = {name: True for name in re.findall(r"VK_DEFINE_HANDLE\((\w+)\)", theirs)}
    handles.update({name: False for name in re.findall(r"VK_DEFINE_NON_DISPATCHABLE_HANDLE\((\w+)\)", theirs)})
    ours = ours.replace("\\\n", "\n")
    short = {"MAKE": lambda m: f"void *device, const {m} *in, const void *allocator, uint64_t *out"}
    ours = re.sub(r"\(MAKE\((\w+)\)\)", lambda m: f"({short['MAKE'](m[1])})", ours)
    ours = ours.replace("(END)", "(void *device, uint64_t what, const void *allocator)")
    count = faults = 0
    for name, result, parameters in re.findall(r"X\((\w+),\s*(\w+),\s*\(([^()]*)\)\)", ours):
        found = re.search(r"typedef (\w+) \(VKAPI_PTR \*PFN_vk" + name + r"\)\((.*?)\);", theirs, re.S)
        if not found:
            continue
        mine = [kind_of(p, handles) for p in parameters_of(parameters)]
        yours = [kind_of(p, handles) for p in parameters_of(found[2])]
        fits = len(mine) == len(yours) and (result == "void") == (found[1] == "void")
        for a, b in zip(mine, yours):
            fits &= a == b or (a[1] == b[1] and a[1] > 0 and "void" in (a[0], b[0]))
        count += 1
        faults += not fits
        if not fits:
            print(f"failed: vk{name}: {mine} here, {yours} there")
    return count, faults


def main():
    if not THEIRS.exists():
        print("skipped: no vulkan/vulkan_core.h\n0 passed, 0 failed, 1 skipped")
        return 0
    ours, theirs = OURS.read_text(), THEIRS.read_text()
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "check.c"
        source.write_text(program(ours, theirs))
        ended = subprocess.run(["cc", "-std=c17", "-fsyntax-only", f"-I{INCLUDE}", f"-I{ROOT}/src", f"-I{ROOT}/include", str(source)],
                               capture_output=True, text=True)
    print(ended.stderr, end="")
    count, faults = compare_calls(ours, theirs)
    unknown = unknown_names(ours, theirs)
    expected = len(re.findall(r"^    X\(\w+, (?:int32_t|void)", ours, re.M))
    expected -= sum(name.startswith("vk") for name in unknown)
    print(f"{len(numbers_of(ours))} numbers, {len(STRUCTURES)} structures, {count} functions; not comparable, for "
          f"{THEIRS} does not know them: {', '.join(unknown) or 'none'}")
    failed = (ended.returncode != 0) + faults + (count != expected)
    print(f"{3 if not failed else 0} passed, {failed} failed, 0 skipped")
    return failed != 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
